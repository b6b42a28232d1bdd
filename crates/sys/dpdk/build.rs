//! Builds the C shim, if the feature `dpdk` asks for it, against the libdpdk that pkg-config finds.

fn main() {
    println!("cargo::rerun-if-changed=shim");
    #[cfg(feature = "dpdk")]
    shim::build();
}

#[cfg(feature = "dpdk")]
mod shim {
    use std::process::Command;

    /// The oldest release whose interface the shim is written for.
    const VERSION_MIN: &str = "22.11";

    pub(super) fn build() {
        let flags = pkg_config(&["--cflags"]);
        let mut compiler = cc::Build::new();
        compiler.file("shim/shim.c").warnings_into_errors(false);
        for flag in flags.split_whitespace() {
            compiler.flag(flag);
        }
        // After what uses them is what the linker wants, so the libraries come last.
        compiler.compile("provost_dpdk_shim");
        // A driver with an interface of its own, which is not among the libraries that pkg-config tells.
        println!("cargo::rustc-link-lib=dylib=rte_net_ring");
        for flag in pkg_config(&["--libs"]).split_whitespace() {
            if let Some(folder) = flag.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={folder}");
            } else if let Some(library) = flag.strip_prefix("-l") {
                let library = library.strip_prefix(':').unwrap_or(library);
                println!("cargo::rustc-link-lib=dylib={library}");
            }
        }
    }

    fn pkg_config(question: &[&str]) -> String {
        let version = format!("libdpdk >= {VERSION_MIN}");
        let output = Command::new("pkg-config").args(question).arg(&version).output();
        match output {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(output) => panic!(
                "the feature `dpdk` needs {version} (Debian: apt-get install libdpdk-dev pkg-config): {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(error) => panic!("the feature `dpdk` needs the command pkg-config: {error}"),
        }
    }
}
