//! Compiles the models of the NIC and of some of its modules with Verilator, if the feature `verilator` asks for it, and writes the
//! functions by which Rust reaches them.

fn main() {
    println!("cargo::rerun-if-changed=../../../hw/rtl");
    println!("cargo::rerun-if-changed=../../../hw/bench");
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "verilator")]
    verilator::build();
}

#[cfg(feature = "verilator")]
mod verilator {
    use std::fmt::Write as _;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// A model: its name, the module that it is of, and parameters and definitions for that module.
    type Model = (&'static str, &'static str, &'static [&'static str]);

    /// The models that are compiled.
    const MODELS: [Model; 15] = [
        ("nic", "nic_stepped", &["+define+NIC_COVERED"]),
        ("nic_wide", "nic_stepped", &["-GFLOWS=8", "-GBATCH=16"]),
        ("clocked_nic", "clocked_nic", &[]),
        ("packet_fifo", "packet_fifo", &[]),
        ("receive_credits", "receive_credits", &[]),
        ("connection_cache", "connection_cache", &[]),
        ("server_slot", "server_slot", &[]),
        ("token_buckets", "token_buckets", &[]),
        ("tx_poller", "tx_poller", &["-GFLOWS=2", "-GFLOW_BITS=1"]),
        ("load_balancer", "load_balancer", &[]),
        ("clock_fifo", "clock_fifo", &["-GWIDTH=32"]),
        ("host_crossing", "host_crossing", &[]),
        ("bus_crossing", "bus_crossing", &[]),
        ("wire_crossing", "wire_crossing", &[]),
        (
            "transport_core_single",
            "transport_core",
            &["-GFLOWS=1", "-GFLOW_BITS=1"],
        ),
    ];
    /// Those of which millions of cycles run.
    const OPTIMIZED: [&str; 2] = ["nic", "nic_wide"];
    const RTL: &str = "../../../hw/rtl";
    /// The NIC with a look into it, and as lock-step simulation drives it.
    const COVERED: &str = "../../../hw/bench/nic_covered.sv";
    const STEPPED: &str = "../../../hw/bench/nic_stepped.sv";

    pub(super) fn build() {
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let root = verilator_root();
        // What runs in every cycle of long tests and of the bench, or in shorter ones, and what runs once, when a model is made.
        let mut cycles = compiler(&root, 3);
        let mut short_runs = compiler(&root, 1);
        let mut beginnings = compiler(&root, 0);
        cycles.file(format!("{root}/include/verilated.cpp"));
        cycles.file(format!("{root}/include/verilated_threads.cpp"));
        for model @ (name, ..) in MODELS {
            let folder = out.join(name);
            verilate(model, &folder);
            // One file each, as Verilator's headers take longer to compile than what is in most of its files.
            let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
                .expect("verilator has made it")
                .map(|entry| entry.expect("it can be read").path())
                .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
                .collect();
            files.sort();
            let (once, often): (Vec<_>, Vec<_>) = files
                .into_iter()
                .partition(|path| path.to_string_lossy().ends_with("Slow.cpp"));
            let all = |files: &[PathBuf]| -> String {
                files
                    .iter()
                    .map(|path| format!("#include \"{}\"\n", path.display()))
                    .collect()
            };
            let written = |file: String, text: String| {
                let path = out.join(file);
                std::fs::write(&path, text).expect("OUT_DIR can be written");
                path
            };
            beginnings
                .file(written(format!("{name}_begins.cc"), all(&once)))
                .include(&folder);
            let glue = all(&often) + &glue_of(name, &folder);
            let runs = if OPTIMIZED.contains(&name) {
                &mut cycles
            } else {
                &mut short_runs
            };
            runs.file(written(format!("{name}_glue.cc"), glue))
                .include(&folder);
        }
        beginnings.compile("provost_nic_models_begin");
        short_runs.compile("provost_nic_models_short");
        cycles.compile("provost_nic_models");
        std::fs::write(out.join("models.rs"), declarations()).expect("OUT_DIR can be written");
    }

    fn compiler(root: &str, level: u32) -> cc::Build {
        let mut compiler = cc::Build::new();
        compiler
            .cpp(true)
            .opt_level(level)
            .warnings(false)
            .flag("-std=gnu++17")
            .include(format!("{root}/include"))
            .include(format!("{root}/include/vltstd"));
        for name in ["VM_COVERAGE", "VM_SC", "VM_TRACE", "VM_TIMING"] {
            compiler.define(name, "0");
        }
        compiler
    }

    fn verilator_root() -> String {
        let output = Command::new("verilator")
            .args(["--getenv", "VERILATOR_ROOT"])
            .output();
        match output {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).trim().to_string()
            }
            _ => panic!(
                "the feature `verilator` needs Verilator 5.006 or later (Debian: apt-get install verilator)"
            ),
        }
    }

    fn verilate((name, module, parameters): Model, folder: &Path) {
        let mut sources: Vec<PathBuf> = std::fs::read_dir(RTL)
            .expect("the RTL is in the repository")
            .map(|entry| entry.expect("it can be read").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "sv"))
            .collect();
        // Packages first.
        sources.sort_by_key(|path| (!path.to_string_lossy().ends_with("_pkg.sv"), path.clone()));
        let _ = std::fs::remove_dir_all(folder);
        let mut command = Command::new("verilator");
        command.args([
            "--cc",
            "-O3",
            "--noassert",
            "-Wno-fatal",
            "--x-assign",
            "0",
            "--x-initial",
            "0",
        ]);
        command.args(["--top-module", module, "--prefix", &format!("V{name}"), "--Mdir"]);
        command.arg(folder).args(parameters);
        if cfg!(feature = "line-128") {
            command.arg("+define+NIC_LINE_BYTES_LOG2=7");
        }
        command.args(&sources).args([COVERED, STEPPED]);
        let output = command.output().expect("verilator starts");
        assert!(
            output.status.success(),
            "verilator failed on {name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// The ports that a model's header declares: name and bytes.
    fn ports(module: &str, folder: &Path) -> Vec<(String, usize)> {
        let header = folder.join(format!("V{module}.h"));
        let header = std::fs::read_to_string(header).expect("verilator has made it");
        let port = |line: &str| {
            let line = line.trim();
            let width = ["VL_IN", "VL_OUT"]
                .iter()
                .find_map(|kind| line.strip_prefix(kind))?;
            let (width, rest) = width.split_once("(&")?;
            let fields: Vec<&str> = rest.trim_end_matches(");").split(',').collect();
            let bytes = match width {
                "8" => 1,
                "16" => 2,
                "" => 4,
                "64" => 8,
                _ => 4 * fields.get(3)?.parse::<usize>().ok()?,
            };
            Some((fields[0].to_string(), bytes))
        };
        header.lines().filter_map(port).collect()
    }

    fn glue_of(module: &str, folder: &Path) -> String {
        let mut glue = format!("#include <cstring>\n#include \"V{module}.h\"\nextern \"C\" {{\n");
        let _ = writeln!(
            glue,
            "void* provost_{module}_new() {{ return new V{module}(new VerilatedContext); }}"
        );
        let _ = writeln!(
            glue,
            "void provost_{module}_delete(void* model) {{ V{module}* it = static_cast<V{module}*>(model);\n\
             VerilatedContext* context = it->contextp(); it->final(); delete it; delete context; }}"
        );
        let _ = writeln!(
            glue,
            "void provost_{module}_eval(void* model) {{ static_cast<V{module}*>(model)->eval(); }}"
        );
        let _ = writeln!(
            glue,
            "void* provost_{module}_port(void* model, const char* name, size_t length, size_t* bytes) {{\n\
             V{module}* it = static_cast<V{module}*>(model);"
        );
        for (name, bytes) in ports(module, folder) {
            let length = name.len();
            let _ = writeln!(
                glue,
                "if (length == {length} && !std::memcmp(name, \"{name}\", length)) {{ *bytes = {bytes}; return &it->{name}; }}"
            );
        }
        glue.push_str("return nullptr; }\n}\n");
        glue
    }

    /// The situations that are looked for, from the lowest bit: of which module, and what.
    fn situations(covered: &str) -> Vec<(&str, &str)> {
        let (_, list) = covered.split_once("assign covered = {").expect("it has the list");
        let named = |line| str::trim(line).strip_prefix("// ")?.split_once(": ");
        let mut situations: Vec<_> = list.lines().filter_map(named).collect();
        situations.reverse();
        situations
    }

    fn declarations() -> String {
        let mut out = String::from("unsafe extern \"C\" {\n");
        for (module, ..) in MODELS {
            let _ = writeln!(out, "    fn provost_{module}_new() -> *mut c_void;");
            let _ = writeln!(out, "    fn provost_{module}_delete(model: *mut c_void);");
            let _ = writeln!(out, "    fn provost_{module}_eval(model: *mut c_void);");
            let _ = writeln!(
                out,
                "    fn provost_{module}_port(model: *mut c_void, name: *const u8, length: usize, bytes: *mut usize) -> *mut c_void;"
            );
        }
        out.push_str("}\n\nconst MODELS: &[ModelFunctions] = &[\n");
        for (module, ..) in MODELS {
            let _ = writeln!(
                out,
                "    ModelFunctions {{ name: \"{module}\", new: provost_{module}_new, delete: provost_{module}_delete, \
                 eval: provost_{module}_eval, port: provost_{module}_port }},"
            );
        }
        out.push_str("];\n\n");
        let covered = std::fs::read_to_string(COVERED).expect("it is in the repository");
        let _ = writeln!(
            out,
            "const SITUATIONS: &[(&str, &str)] = &{:?};",
            situations(&covered)
        );
        out
    }
}
