//! The schemas of the node's own services, for clients that ask for them: as gRPC's health checking and server reflection
//! protocols declare them.

use std::sync::{Arc, LazyLock};

/// `proto/health.proto`, and `proto/reflection.proto` in both of its versions, as protox compiles them: a `FileDescriptorSet`. A test
/// compares them, and writes it anew with `PROVOST_BLESS=1`.
const HEALTH_AND_REFLECTION: &[u8] = include_bytes!("proto/health_and_reflection.binpb");

/// gRPC's `grpc/channelz/v1/channelz.proto` and what it imports, as `protoc --include_imports --descriptor_set_out` writes them. What a
/// node fills of it is in [`super::channelz`].
const CHANNELZ: &[u8] = include_bytes!("channelz/channelz.binpb");

/// All of them, as a `FileDescriptorSet`.
pub(super) fn own_set() -> Arc<[u8]> {
    static OWN: LazyLock<Arc<[u8]>> = LazyLock::new(|| {
        // Lists that are encoded one after the other are one list.
        [HEALTH_AND_REFLECTION, CHANNELZ].concat().into()
    });
    Arc::clone(&OWN)
}

#[cfg(test)]
mod tests {
    use protox::file::{File, FileResolver};
    use provost_schema::Schema;

    use super::*;

    /// What is compiled, by the names that gRPC gives it.
    struct Sources;

    impl FileResolver for Sources {
        fn open_file(&self, name: &str) -> Result<File, protox::Error> {
            const REFLECTION: &str = include_str!("proto/reflection.proto");
            match name {
                "grpc/health/v1/health.proto" => File::from_source(name, include_str!("proto/health.proto")),
                "grpc/reflection/v1/reflection.proto" => File::from_source(name, REFLECTION),
                "grpc/reflection/v1alpha/reflection.proto" => {
                    let older = REFLECTION.replace("grpc.reflection.v1;", "grpc.reflection.v1alpha;");
                    File::from_source(name, &older)
                }
                _ => Err(protox::Error::file_not_found(name)),
            }
        }
    }

    #[test]
    fn they_are_what_their_sources_compile_to() {
        let names = [
            "health/v1/health",
            "reflection/v1/reflection",
            "reflection/v1alpha/reflection",
        ];
        let mut compiler = protox::Compiler::with_file_resolver(Sources);
        compiler
            .open_files(names.map(|name| format!("grpc/{name}.proto")))
            .unwrap();
        let made = compiler.encode_file_descriptor_set();
        if std::env::var_os("PROVOST_BLESS").is_some() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/grpc/node_services/proto");
            std::fs::write(format!("{folder}/health_and_reflection.binpb"), &made).unwrap();
        }
        assert!(made == HEALTH_AND_REFLECTION, "PROVOST_BLESS=1 writes it anew");
    }

    #[test]
    fn they_are_schemas_as_others_are() {
        let schema = Schema::from_descriptor_set(&own_set()).unwrap();
        let health = schema.service("grpc.health.v1.Health").unwrap();
        let watch = health
            .methods
            .iter()
            .find(|method| method.name == "Watch")
            .unwrap();
        assert!(watch.server_streaming && !watch.client_streaming);
        for version in ["v1", "v1alpha"] {
            let name = format!("grpc.reflection.{version}.ServerReflection");
            let reflection = schema.service(&name).unwrap();
            assert!(reflection.methods[0].server_streaming && reflection.methods[0].client_streaming);
        }
        let channelz = schema.service("grpc.channelz.v1.Channelz").unwrap();
        let methods = channelz.methods.iter().map(|method| method.name.as_str());
        let mut methods: Vec<_> = methods.collect();
        methods.sort_unstable();
        let answered = super::super::METHODS.iter().filter_map(|(_, path, _)| {
            let (_, method) = path.split_once("grpc.channelz.v1.Channelz/")?;
            Some(method)
        });
        let mut answered: Vec<_> = answered.collect();
        answered.sort_unstable();
        assert_eq!(methods, answered);
    }
}
