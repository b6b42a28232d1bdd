//! Generates the code of the test service, of three others of the same name that differ from it, and of the services of gRPC's
//! interoperability tests.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let protos = ["probe", "interop", "load_reports"].map(|name| format!("proto/{name}.proto"));
    provost_build::compile_protos(&protos, &["proto"])?;
    let out_dir = PathBuf::from(std::env::var("OUT_DIR")?);
    for other in ["compatible", "incompatible", "larger"] {
        let directory = out_dir.join(other);
        std::fs::create_dir_all(&directory)?;
        let schemas = format!("schemas/{other}");
        provost_build::configure()
            .out_dir(directory)
            .build_server(other == "compatible")
            .compile_protos(&[format!("{schemas}/probe.proto")], &[schemas])?;
    }
    Ok(())
}
