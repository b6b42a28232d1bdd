//! Whether the compiled BPF programs are those of the source beside them.

use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf"))
}

#[test]
fn the_object_was_compiled_from_this_source() {
    let source = std::fs::read(folder().join("probes.bpf.c")).unwrap();
    let hash: String = Sha256::digest(&source)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let noted = std::fs::read_to_string(folder().join("probes.bpf.sha256")).unwrap();
    assert_eq!(
        noted.trim(),
        hash,
        "bpf/probes.bpf.c has changed: run bpf/build.sh, and commit the object with it"
    );
}

/// Where there is the same compiler, its result is the same.
#[test]
fn compiling_again_gives_the_same_object() {
    let Some((clang, strip)) = same_compiler() else {
        // Debian 12 has it, later ones have not.
        provost_skip::forbidden(format!(
            "the object was compiled by clang {VERSION}, which is not installed (Debian 12: apt-get install clang-14 llvm-14)"
        ));
        return;
    };
    let copy = tempfile::tempdir().unwrap();
    for name in ["probes.bpf.c", "build.sh"] {
        std::fs::copy(folder().join(name), copy.path().join(name)).unwrap();
    }
    let built = Command::new("sh")
        .arg(copy.path().join("build.sh"))
        .env("CLANG", clang)
        .env("LLVM_STRIP", strip)
        .status()
        .unwrap();
    assert!(built.success());
    let [ours, kept] =
        [copy.path(), folder()].map(|folder| std::fs::read(folder.join("probes.bpf.o")).unwrap());
    assert!(ours == kept, "bpf/probes.bpf.o is not what bpf/build.sh makes");
}

/// What the object was compiled with.
const VERSION: &str = "14.0.6";

/// That compiler and the program that takes symbols out, by any name that they have.
fn same_compiler() -> Option<(&'static str, &'static str)> {
    let names = [("clang-14", "llvm-strip-14"), ("clang", "llvm-strip")];
    let is_same = |program: &str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(VERSION))
    };
    names
        .into_iter()
        .find(|(clang, strip)| is_same(clang) && is_same(strip))
}
