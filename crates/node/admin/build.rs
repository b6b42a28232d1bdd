//! Generates the admin API's messages, client and server. No protoc is needed: protox compiles the schema.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Beside this file: build scripts run there.
    let root = std::path::Path::new("proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let files = protox::compile(["provost/admin/v1/admin.proto"], [root])?;
    tonic_prost_build::configure()
        .message_attribute(
            ".",
            "#[derive(serde::Serialize, serde::Deserialize)]\n#[serde(default)]",
        )
        .field_attribute("Status.state", "#[serde(with = \"crate::state_name\")]")
        .compile_fds(files)?;
    Ok(())
}
