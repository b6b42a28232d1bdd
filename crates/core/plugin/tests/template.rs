//! The template is a package of its own: it builds, passes its test and can be loaded.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::Command;

#[test]
fn the_template_builds_apart_from_the_workspace_and_can_be_loaded() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("template");
    let copy = tempfile::tempdir().unwrap();
    let template = root.join("sdk/template");
    let engine = root.join("crates/core/engine").canonicalize().unwrap();
    let manifest = std::fs::read_to_string(template.join("Cargo.toml")).unwrap();
    let manifest = manifest.replace("../../crates/core/engine", engine.to_str().unwrap());
    std::fs::create_dir(copy.path().join("src")).unwrap();
    std::fs::write(copy.path().join("Cargo.toml"), manifest).unwrap();
    // The versions of the workspace, so that nothing new is fetched.
    std::fs::copy(root.join("Cargo.lock"), copy.path().join("Cargo.lock")).unwrap();
    std::fs::copy(template.join("src/lib.rs"), copy.path().join("src/lib.rs")).unwrap();
    for command in ["test", "build"] {
        let done = Command::new(env!("CARGO"))
            .args([command, "--quiet", "--target-dir"])
            .arg(&target)
            .current_dir(copy.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let library = copy.path().join("engine.so");
    std::fs::copy(target.join("debug/libmy_policy.so"), &library).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&library, mode).unwrap();
    assert_eq!(provost_plugin::load(&library).unwrap().name(), "my-policy");
}
