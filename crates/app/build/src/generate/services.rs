//! Services: what describes them, clients, and the traits that servers implement.

use std::collections::HashSet;
use std::fmt::Write as _;

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use provost_schema::{MessageId, Method, Schema, Service};

use super::code::{ALLOW, Code};
use super::scope::Scope;
use super::{Generator, qualified, service_name};
use crate::error::Error;
use crate::names::{camel, snake};

/// Names in the service's module that its client and its server offer too.
const DESCRIPTIONS: &str = "DESCRIPTOR_SET, METHODS, SCHEMA_HASH, SERVICE, SERVICE_NAME";
/// Functions that every client has; a method of that name gets an underscore.
const CLIENT_FUNCTIONS: [&str; 4] = ["new", "connect", "channel", "with_interceptor"];

/// A path as it is written one module deeper.
fn from_within(path: &str) -> String {
    if path.starts_with("::") || path.starts_with("crate::") {
        path.to_owned()
    } else {
        format!("super::{path}")
    }
}

impl Generator<'_> {
    /// The modules of a service.
    pub(super) fn service(
        &self,
        code: &mut Code,
        scope: &mut Scope,
        service: &Service,
        modules: &[String],
    ) -> Result<(), Error> {
        let stubs = self.stubs(service, modules)?;
        let descriptor_set = self.descriptor_set(service);
        // No node would take it of an app.
        if let Err(error) = Schema::from_descriptor_set(&descriptor_set) {
            return Err(self
                .sources
                .problem_at(&service.full_name, error.to_string())
                .into());
        }
        let parts = [
            ("service", true),
            ("client", self.services.client),
            ("server", self.services.server),
        ];
        for (part, _) in parts.iter().filter(|(_, wanted)| *wanted) {
            scope.take(self.sources, &stubs.module(part), &service.full_name)?;
        }
        self.description(code, &stubs, &descriptor_set);
        if self.services.client {
            stubs.client(code);
        }
        if self.services.server {
            stubs.server(code);
        }
        Ok(())
    }

    fn stubs<'s>(&self, service: &'s Service, modules: &[String]) -> Result<Stubs<'s>, Error> {
        let (mut taken, mut streams) = (Scope::new(), Scope::new());
        let mut methods = Vec::with_capacity(service.methods.len());
        for (index, method) in service.methods.iter().enumerate() {
            let function = match snake(&method.name) {
                taken if CLIENT_FUNCTIONS.contains(&taken.as_str()) => format!("{taken}_"),
                free => free,
            };
            let full_name = qualified(&service.full_name, &method.name);
            taken.take(self.sources, &function, &full_name)?;
            if method.server_streaming {
                streams.take(self.sources, &stream_ident(method), &full_name)?;
            }
            // Types are named from inside of the client's or server's module, and one deeper in the blocking client's.
            let path =
                |id: MessageId| from_within(&self.path(modules, &self.sources.schema.message(id).full_name));
            let (input, output) = (path(method.input), path(method.output));
            methods.push(Stub {
                method,
                index,
                function,
                input,
                output,
            });
        }
        let name = service_name(service);
        let base = snake(name);
        let base = base
            .strip_prefix("r#")
            .unwrap_or(&base)
            .trim_end_matches('_')
            .to_owned();
        Ok(Stubs {
            service,
            ident: camel(name),
            base,
            methods,
        })
    }

    fn description(&self, code: &mut Code, stubs: &Stubs<'_>, descriptor_set: &[u8]) {
        let service = stubs.service;
        code.line("");
        code.line(format_args!(
            "/// What describes the service `{}`.",
            service.full_name
        ));
        code.line(ALLOW);
        code.enter(format_args!("pub mod {} {{", stubs.module("service")));
        code.line("/// Full name of the service.");
        code.line(format_args!(
            "pub const SERVICE_NAME: &str = \"{}\";",
            service.full_name
        ));
        code.line("/// Content hash of the service's schema.");
        let hash = self
            .sources
            .schema
            .service_hash(&service.full_name)
            .map(|hash| hash.0)
            .unwrap_or_default();
        code.enter("pub const SCHEMA_HASH: [u8; 32] = [");
        for row in hash.chunks(16) {
            code.line(
                row.iter()
                    .map(|byte| format!("0x{byte:02x},"))
                    .collect::<Vec<_>>()
                    .join(" "),
            );
        }
        code.leave("];");
        code.line("/// The service's schema: a serialized `google.protobuf.FileDescriptorSet`.");
        code.line("#[rustfmt::skip]");
        code.line(format_args!(
            "pub const DESCRIPTOR_SET: &[u8] = {};",
            literal(descriptor_set)
        ));
        code.line("/// The methods in schema order; a method's index is its number on the wire.");
        code.enter("pub const METHODS: &[::provost::codegen::MethodDescriptor] = &[");
        for stub in &stubs.methods {
            code.line(format_args!(
                "::provost::__method!(\"{}\", {}, {}, {}),",
                stub.method.name,
                kind(stub.method).0,
                stub.input,
                stub.output
            ));
        }
        code.leave("];");
        code.line("/// All of it.");
        code.enter("pub static SERVICE: ::provost::codegen::ServiceDescriptor = ::provost::__service! {");
        code.line("SERVICE_NAME, &SCHEMA_HASH, DESCRIPTOR_SET, METHODS");
        code.leave("};");
        code.leave("}");
    }

    /// The file of the service and all that it imports, without comments and custom options.
    fn descriptor_set(&self, service: &Service) -> Vec<u8> {
        let files = &self.sources.files;
        let home = files.iter().rposition(|file| {
            file.service
                .iter()
                .any(|item| qualified(file.package(), item.name()) == service.full_name)
        });
        let mut needed: HashSet<&str> = HashSet::new();
        let mut kept = Vec::new();
        // Files come after those that they import, so one pass backwards finds all.
        for (index, file) in files.iter().enumerate().rev() {
            if Some(index) != home && !needed.contains(file.name()) {
                continue;
            }
            needed.extend(file.dependency.iter().map(String::as_str));
            kept.push(bare(file, |name| files.iter().any(|file| file.name() == name)));
        }
        kept.reverse();
        FileDescriptorSet { file: kept }.encode_to_vec()
    }
}

/// A file without comments and custom options, and what it would import for the latter: what is not kept.
fn bare(file: &FileDescriptorProto, is_kept: impl Fn(&str) -> bool) -> FileDescriptorProto {
    let mut bare = file.clone();
    bare.source_code_info = None;
    bare.options = None;
    bare.extension.clear();
    bare.message_type.iter_mut().for_each(clear_extensions);
    let (dependencies, mut moved) = (&file.dependency, Vec::new());
    for name in dependencies.iter().filter(|name| is_kept(name)) {
        moved.push(name.clone());
    }
    let renumber = |old: &i32| {
        let name = dependencies.get(usize::try_from(*old).ok()?)?;
        moved
            .iter()
            .position(|kept| kept == name)
            .and_then(|at| i32::try_from(at).ok())
    };
    bare.public_dependency = file.public_dependency.iter().filter_map(renumber).collect();
    bare.weak_dependency = file.weak_dependency.iter().filter_map(renumber).collect();
    bare.dependency = moved;
    bare
}

fn clear_extensions(message: &mut DescriptorProto) {
    message.extension.clear();
    message.nested_type.iter_mut().for_each(clear_extensions);
}

/// Bytes as a literal of several lines.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("b\"");
    for row in bytes.chunks(48) {
        text.push_str("\\\n");
        for (at, byte) in row.iter().enumerate() {
            match byte {
                // A space at the line's begin would be taken for its indentation.
                b' ' if at == 0 => text.push_str("\\x20"),
                b' '..=b'~' if !b"\"\\".contains(byte) => text.push(char::from(*byte)),
                _ => _ = write!(text, "\\x{byte:02x}"),
            }
        }
    }
    text.push('"');
    text
}

/// The name of the method's kind as a variant, and of the functions that carry it out.
fn kind(method: &Method) -> (&'static str, &'static str) {
    match (method.client_streaming, method.server_streaming) {
        (false, false) => ("Unary", "unary"),
        (false, true) => ("ServerStreaming", "server_streaming"),
        (true, false) => ("ClientStreaming", "client_streaming"),
        (true, true) => ("Bidirectional", "bidirectional"),
    }
}

/// The type of the stream that a method answers with.
fn stream_ident(method: &Method) -> String {
    format!("{}Stream", camel(&method.name).trim_end_matches('_'))
}

/// A service with its names in Rust.
struct Stubs<'a> {
    service: &'a Service,
    ident: String,
    /// What the names of its modules begin with.
    base: String,
    methods: Vec<Stub<'a>>,
}

/// A method with its names in Rust.
struct Stub<'a> {
    method: &'a Method,
    index: usize,
    function: String,
    /// Paths of the messages, from inside of the client's or server's module.
    input: String,
    output: String,
}

impl Stubs<'_> {
    fn module(&self, part: &str) -> String {
        format!("{}_{part}", self.base)
    }

    fn ident(&self) -> &str {
        self.ident.trim_end_matches('_')
    }

    /// What the server's struct calls its parameter: another name than the trait's.
    fn generic(&self) -> &'static str {
        if self.ident == "T" { "S" } else { "T" }
    }

    fn client(&self, code: &mut Code) {
        let ident = self.ident();
        code.line("");
        code.line(format_args!(
            "/// Client of the service `{}`.",
            self.service.full_name
        ));
        code.line(ALLOW);
        code.enter(format_args!("pub mod {} {{", self.module("client")));
        code.line(format_args!(
            "pub use super::{}::{{{DESCRIPTIONS}}};",
            self.module("service")
        ));
        code.line("");
        code.docs(
            &self.service.docs,
            format_args!("Service `{}`.", self.service.full_name),
        );
        code.line("///");
        code.line("/// This is a client. Cheap to clone; all clones share the connection.");
        code.line("#[derive(Clone, Debug)]");
        code.block(format_args!("pub struct {ident}Client {{"), |code| {
            code.line("channel: ::provost::Channel,")
        });
        code.line("");
        code.block(format_args!("impl {ident}Client {{"), |code| {
            connect(code);
            self.methods.iter().for_each(|stub| stub.call(code));
        });
        self.blocking_client(code);
        code.leave("}");
    }

    fn blocking_client(&self, code: &mut Code) {
        let ident = self.ident();
        code.line("");
        code.line("/// The client for threads that wait.");
        code.enter("pub mod blocking {");
        code.docs(
            &self.service.docs,
            format_args!("Service `{}`.", self.service.full_name),
        );
        code.line("///");
        code.line("/// This is a client whose functions wait for the answer. It must not be used in asynchronous code.");
        code.line("#[derive(Clone, Debug)]");
        code.block(format_args!("pub struct {ident}Client {{"), |code| {
            code.line(format_args!("inner: super::{ident}Client,"));
        });
        code.line("");
        code.block(format_args!("impl {ident}Client {{"), |code| {
            connect_blocking(code, ident);
            self.methods.iter().for_each(|stub| stub.call_blocking(code));
        });
        code.leave("}");
    }

    fn server(&self, code: &mut Code) {
        let (ident, handlers) = (self.ident(), &self.ident);
        code.line("");
        code.line(format_args!(
            "/// Server of the service `{}`.",
            self.service.full_name
        ));
        code.line(ALLOW);
        code.enter(format_args!("pub mod {} {{", self.module("server")));
        code.line(format_args!(
            "pub use super::{}::{{{DESCRIPTIONS}}};",
            self.module("service")
        ));
        code.line("");
        code.docs(
            &self.service.docs,
            format_args!("Service `{}`.", self.service.full_name),
        );
        code.line("///");
        code.line(format_args!(
            "/// Implement this, with `async fn`s, and give it to [`{ident}Server`]."
        ));
        code.block(
            format_args!("pub trait {handlers}: ::core::marker::Send + ::core::marker::Sync + 'static {{"),
            |code| {
                for (position, stub) in self.methods.iter().enumerate() {
                    if position > 0 {
                        code.line("");
                    }
                    stub.handler(code);
                }
            },
        );
        self.server_struct(code);
        code.leave("}");
    }

    fn server_struct(&self, code: &mut Code) {
        let (ident, handlers, generic) = (self.ident(), self.ident.as_str(), self.generic());
        let methods = if self.methods.is_empty() { "_" } else { "methods" };
        code.line("");
        code.line(format_args!(
            "/// Offers an implementation of [`{handlers}`] on a server."
        ));
        code.block(format_args!("pub struct {ident}Server<{generic}> {{"), |code| {
            code.line(format_args!("inner: ::std::sync::Arc<{generic}>,"));
        });
        code.line("");
        code.block(
            format_args!("impl<{generic}: {handlers}> {ident}Server<{generic}> {{"),
            |code| {
                code.line("/// Offers this implementation.");
                code.block(format_args!("pub fn new(inner: {generic}) -> Self {{"), |code| {
                    code.line("Self::from_arc(::std::sync::Arc::new(inner))")
                });
                code.line("");
                code.line("/// Offers an implementation that is shared with others.");
                let signature = format!("pub fn from_arc(inner: ::std::sync::Arc<{generic}>) -> Self {{");
                code.block(signature, |code| code.line("Self { inner }"));
                code.line("");
                code.line("/// Offers this implementation, whose calls an interceptor sees first.");
                let signature = format!(
                    "pub fn with_interceptor(inner: {generic}, interceptor: impl ::provost::CallInterceptor) \
                 -> ::provost::InterceptedService<Self> {{"
                );
                code.block(signature, |code| {
                    code.line("::provost::InterceptedService::new(Self::new(inner), interceptor)");
                });
            },
        );
        code.line("");
        code.block(
            format_args!("impl<{generic}> ::core::clone::Clone for {ident}Server<{generic}> {{"),
            |code| {
                code.block("fn clone(&self) -> Self {", |code| {
                    code.line("Self { inner: ::std::sync::Arc::clone(&self.inner) }");
                });
            },
        );
        code.line("");
        code.block(
            format_args!("impl<{generic}> ::core::fmt::Debug for {ident}Server<{generic}> {{"),
            |code| {
                let signature =
                    "fn fmt(&self, formatter: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {";
                code.block(signature, |code| {
                    code.line(format_args!("formatter.write_str(\"{ident}Server\")"))
                });
            },
        );
        code.line("");
        code.block(
            format_args!(
                "impl<{generic}: {handlers}> ::provost::codegen::Service for {ident}Server<{generic}> {{"
            ),
            |code| {
                code.block(
                    "fn descriptor(&self) -> &'static ::provost::codegen::ServiceDescriptor {",
                    |code| {
                        code.line("&SERVICE");
                    },
                );
                code.line("");
                code.block(
                    format_args!("fn register(&self, {methods}: &mut ::provost::codegen::Methods) {{"),
                    |code| {
                        let register = |stub: &Stub<'_>| stub.register(code, (generic, handlers));
                        self.methods.iter().for_each(register);
                    },
                );
            },
        );
    }
}

fn connect(code: &mut Code) {
    code.line("/// Connects to the service: by the name under which the node's configuration routes it, such as its full");
    code.line("/// name, or to a [`Target`](::provost::Target).");
    let signature = "pub async fn connect(target: impl ::core::convert::Into<::provost::Target>) \
                     -> ::core::result::Result<Self, ::provost::Status> {";
    code.block(signature, |code| {
        code.line("let channel = ::provost::Channel::connect(&SERVICE, target).await?;");
        code.line("::core::result::Result::Ok(Self { channel })");
    });
    code.line("");
    code.line("/// A client over a connection to a service of this schema.");
    code.block("pub fn new(channel: ::provost::Channel) -> Self {", |code| {
        code.line("Self { channel }")
    });
    code.line("");
    code.line("/// The connection.");
    code.block("pub fn channel(&self) -> &::provost::Channel {", |code| {
        code.line("&self.channel")
    });
    with_interceptor(code);
}

fn with_interceptor(code: &mut Code) {
    code.line("");
    code.line("/// A client over this connection whose calls an interceptor sees first.");
    let signature = "pub fn with_interceptor(channel: ::provost::Channel, \
                     interceptor: impl ::provost::CallInterceptor) -> Self {";
    code.block(signature, |code| {
        code.line("Self::new(channel.intercept(interceptor))")
    });
}

fn connect_blocking(code: &mut Code, ident: &str) {
    code.line(format_args!(
        "/// Connects to the service; see [`{ident}Client::connect`](super::{ident}Client::connect)."
    ));
    let signature = "pub fn connect(target: impl ::core::convert::Into<::provost::Target>) \
                     -> ::core::result::Result<Self, ::provost::Status> {";
    code.block(signature, |code| {
        code.line(format_args!(
            "let inner = ::provost::blocking::block_on(super::{ident}Client::connect(target))?;"
        ));
        code.line("::core::result::Result::Ok(Self { inner })");
    });
    code.line("");
    code.line("/// A client over a connection to a service of this schema.");
    code.block("pub fn new(channel: ::provost::Channel) -> Self {", |code| {
        code.line(format_args!(
            "Self {{ inner: super::{ident}Client::new(channel) }}"
        ));
    });
    code.line("");
    code.line("/// The connection.");
    code.block("pub fn channel(&self) -> &::provost::Channel {", |code| {
        code.line("self.inner.channel()")
    });
    with_interceptor(code);
}

impl Stub<'_> {
    fn docs(&self, code: &mut Code) {
        code.docs(&self.method.docs, format_args!("Method `{}`.", self.method.name));
    }

    fn call(&self, code: &mut Code) {
        let Stub {
            function,
            input,
            output,
            index,
            ..
        } = self;
        let (request, into) = if self.method.client_streaming {
            (
                format!("impl ::provost::IntoStreamingRequest<Message = {input}>"),
                "into_streaming_request",
            )
        } else {
            (format!("impl ::provost::IntoRequest<{input}>"), "into_request")
        };
        let (_, runtime) = kind(self.method);
        code.line("");
        self.docs(code);
        code.enter(format_args!("pub async fn {function}("));
        code.line("&self,");
        code.line(format_args!("request: {request},"));
        code.leave(format_args!(") -> {} {{", result(&self.received(output))));
        code.block_end(|code| {
            code.line(format_args!(
                "::provost::codegen::{runtime}(&self.channel, {index}, request.{into}()).await"
            ));
        });
    }

    fn call_blocking(&self, code: &mut Code) {
        let Stub {
            function,
            input,
            output,
            ..
        } = self;
        let (input, output) = (from_within(input), from_within(output));
        let (request, given) = if self.method.client_streaming {
            (
                format!("impl ::provost::blocking::IntoIteratorRequest<Message = {input}>"),
                "::provost::blocking::IntoIteratorRequest::into_streaming_request(request)",
            )
        } else {
            (format!("impl ::provost::IntoRequest<{input}>"), "request")
        };
        let received = if self.method.server_streaming {
            format!("::provost::blocking::Streaming<{output}>")
        } else {
            self.received(&output)
        };
        code.line("");
        self.docs(code);
        code.enter(format_args!("pub fn {function}("));
        code.line("&self,");
        code.line(format_args!("request: {request},"));
        code.leave(format_args!(") -> {} {{", result(&received)));
        code.block_end(|code| {
            if self.method.server_streaming {
                code.line(format_args!(
                    "let response = ::provost::blocking::block_on(self.inner.{function}({given}))?;"
                ));
                code.line("::core::result::Result::Ok(response.map(::provost::blocking::Streaming::new))");
            } else {
                code.line(format_args!(
                    "::provost::blocking::block_on(self.inner.{function}({given}))"
                ))
            }
        });
    }

    fn received(&self, output: &str) -> String {
        if self.method.server_streaming {
            format!("::provost::Streaming<{output}>")
        } else {
            format!("::provost::Received<{output}>")
        }
    }

    fn handler(&self, code: &mut Code) {
        let Stub {
            function,
            input,
            output,
            ..
        } = self;
        let answer = if self.method.server_streaming {
            let name = stream_ident(self.method);
            let item = format!("::core::result::Result<{output}, ::provost::Status>");
            code.line(format_args!(
                "/// The stream that [`{function}`](Self::{function}) answers with."
            ));
            code.line(format_args!(
                "type {name}: ::provost::codegen::Stream<Item = {item}> + ::core::marker::Send + 'static;"
            ));
            code.line("");
            format!("Self::{name}")
        } else {
            output.clone()
        };
        let request = if self.method.client_streaming {
            format!("::provost::Streaming<{input}>")
        } else {
            format!("::provost::Received<{input}>")
        };
        self.docs(code);
        code.enter(format_args!("fn {function}("));
        code.line("&self,");
        code.line(format_args!("request: ::provost::Request<{request}>,"));
        code.leave(format_args!(
            ") -> impl ::core::future::Future<Output = {}> + ::core::marker::Send;",
            result(&answer)
        ));
    }

    fn register(&self, code: &mut Code, (generic, handlers): (&str, &str)) {
        let (_, registered) = kind(self.method);
        code.line("let inner = ::std::sync::Arc::clone(&self.inner);");
        code.enter(format_args!(
            "methods.{registered}({}, move |request| {{",
            self.index
        ));
        code.line("let inner = ::std::sync::Arc::clone(&inner);");
        code.line(format_args!(
            "async move {{ <{generic} as {handlers}>::{}(&*inner, request).await }}",
            self.function
        ));
        code.leave("});");
    }
}

/// The result of a call that answers with this.
fn result(answer: &str) -> String {
    format!("::core::result::Result<::provost::Response<{answer}>, ::provost::Status>")
}
