//! The generated code is what the schema gives now. With `PROVOST_BLESS=1` it is written anew.

use std::path::Path;

const HEADER: &str =
    "// @generated from proto/provost/admin/v1/admin.proto by `cargo xtask codegen --bless`.\n";

#[test]
fn the_generated_code_is_fresh() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    // No protoc is needed: protox compiles the schema.
    let files = protox::compile(["provost/admin/v1/admin.proto"], [package.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .message_attribute(
            ".",
            "#[derive(serde::Serialize, serde::Deserialize)]\n#[serde(default)]",
        )
        .field_attribute("Status.state", "#[serde(with = \"crate::state_name\")]")
        .out_dir(folder.path())
        .compile_fds(files)
        .unwrap();
    let made = std::fs::read_to_string(folder.path().join("provost.admin.v1.rs")).unwrap();
    let made = format!("{HEADER}{made}");
    let golden = package.join("src/v1.rs");
    if std::env::var_os("PROVOST_BLESS").is_some() {
        std::fs::write(&golden, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&golden).unwrap();
    assert!(
        kept == made,
        "src/v1.rs is not fresh: cargo xtask codegen --bless"
    );
}
