//! Which bucket a call is charged to: a keyed hash of what its calls have in common.
//!
//! The hash is SipHash-1-3 of 64 bits under a secret, so nobody can choose values that collide. Of 65,536 keys two
//! share a bucket by accident in one of 10¹⁰ cases, and then limit each other.

use std::hash::{BuildHasher, Hasher, RandomState};

use provost_engine::{AttachError, DatapathContext, Direction, FieldPath, StepView, Value};
use provost_marshal::ReadError;
use provost_schema::{Cardinality, Field, MessageId, Schema, Type};
use siphasher::sip::SipHasher13;

use crate::rate_limit::config::KeyPart;

/// The secret of a policy's keys. It is saved along with the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeySeed(pub(crate) [u8; 16]);

impl KeySeed {
    pub(crate) fn random() -> KeySeed {
        let random = || RandomState::new().hash_one(0u64).to_le_bytes();
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&random());
        seed[8..].copy_from_slice(&random());
        KeySeed(seed)
    }

    fn hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// How the keys of one datapath's calls are made.
#[derive(Debug)]
pub(crate) struct KeyPlan {
    /// For each method what is known beforehand.
    methods: Box<[MethodKey]>,
}

#[derive(Debug)]
struct MethodKey {
    /// The hash of what all calls of the method have in common.
    begun: SipHasher13,
    /// The key, if there is nothing else.
    whole: Option<u64>,
    /// What is read of each call.
    reads: Box<[KeyRead]>,
}

#[derive(Debug)]
enum KeyRead {
    Metadata(Box<str>),
    Field(FieldPath),
}

/// What stands before a part of a key, so that no two forms of it look the same.
mod tag {
    pub(super) const ABSENT: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const NUMBER: u8 = 2;
}

impl KeyPlan {
    /// The plan of a datapath, or why the parts cannot be read there.
    pub(crate) fn new(
        parts: &[KeyPart],
        seed: KeySeed,
        datapath_context: &DatapathContext,
    ) -> Result<KeyPlan, AttachError> {
        let methods = (0..datapath_context.methods.len() as u16)
            .map(|method| MethodKey::new(parts, seed, datapath_context, method));
        Ok(KeyPlan {
            methods: methods.collect::<Result<_, _>>()?,
        })
    }

    /// The key of a call that begins with this step.
    ///
    /// # Errors
    /// A field that is part of it cannot be read.
    pub(crate) fn key(&self, step: &mut StepView<'_>) -> Result<u64, ReadError> {
        let Some(method) = self.methods.get(usize::from(step.method_index())) else {
            return Ok(1);
        };
        if let Some(whole) = method.whole {
            return Ok(whole);
        }
        let mut hasher = method.begun;
        for read in &method.reads {
            match read {
                KeyRead::Metadata(key) => hash_text(&mut hasher, step.metadata(key)),
                KeyRead::Field(path) => hash_value(&mut hasher, step.field(path)?),
            }
        }
        Ok(finish(&hasher))
    }
}

impl MethodKey {
    fn new(
        parts: &[KeyPart],
        seed: KeySeed,
        datapath_context: &DatapathContext,
        method: u16,
    ) -> Result<MethodKey, AttachError> {
        let mut begun = seed.hasher();
        let mut reads = Vec::new();
        for part in parts {
            match part {
                KeyPart::App => hash_text(&mut begun, Some(datapath_context.app.name.as_bytes())),
                KeyPart::User => hash_number(&mut begun, u64::from(datapath_context.app.uid)),
                KeyPart::Method => {
                    let path = datapath_context
                        .methods
                        .get(usize::from(method))
                        .map(|method| method.path.as_bytes());
                    hash_text(&mut begun, path);
                }
                KeyPart::Peer => hash_text(&mut begun, Some(peer(datapath_context).as_bytes())),
                KeyPart::PeerApp => {
                    let app = datapath_context.peer.known_app();
                    hash_text(&mut begun, app.map(|app| app.name.as_bytes()));
                }
                KeyPart::PeerUser => hash_peer_user(&mut begun, datapath_context),
                KeyPart::PeerNode => {
                    let node = datapath_context.peer_node();
                    hash_text(&mut begun, node.map(|node| node.as_bytes()));
                }
                KeyPart::PeerIdentity => {
                    hash_text(&mut begun, Some(datapath_context.peer.identity.as_bytes()));
                }
                KeyPart::Metadata(key) => reads.push(KeyRead::Metadata(key.as_str().into())),
                // The policy is not there for calls of other methods: their messages may have other fields.
                KeyPart::Message(_) if !datapath_context.applies_to(method) => {}
                KeyPart::Message(path) => reads.push(KeyRead::Field(field(datapath_context, method, path)?)),
            }
        }
        Ok(MethodKey {
            begun,
            whole: reads.is_empty().then(|| finish(&begun)),
            reads: reads.into(),
        })
    }
}

/// The peer's proven identity, else the host that it calls from (its port changes with each connection), else the app
/// on the same node.
fn peer(datapath_context: &DatapathContext) -> &str {
    let peer = &datapath_context.peer;
    let host = peer
        .address
        .rsplit_once(':')
        .map_or(&*peer.address, |(host, _)| host);
    match (peer.identity.is_empty(), &peer.app) {
        (false, _) => &peer.identity,
        (true, Some(app)) if host.is_empty() => &app.name,
        (true, _) => host,
    }
}

/// A user is one of a node: the same number elsewhere is somebody else.
fn hash_peer_user(hasher: &mut SipHasher13, datapath_context: &DatapathContext) {
    let node = datapath_context.peer_node();
    hash_text(hasher, node.map(|node| node.as_bytes()));
    match datapath_context.peer.known_app() {
        Some(app) => hash_number(hasher, u64::from(app.uid)),
        None => hash_text(hasher, None),
    }
}

fn hash_text(hasher: &mut SipHasher13, text: Option<&[u8]>) {
    let Some(text) = text else {
        return hasher.write_u8(tag::ABSENT);
    };
    hasher.write_u8(tag::TEXT);
    hasher.write_u32(text.len() as u32);
    hasher.write(text);
}

fn hash_number(hasher: &mut SipHasher13, number: u64) {
    hasher.write_u8(tag::NUMBER);
    hasher.write(&number.to_le_bytes());
}

fn hash_value(hasher: &mut SipHasher13, value: Option<Value<'_>>) {
    match value {
        Some(Value::String(text)) => hash_text(hasher, Some(text.as_bytes())),
        Some(Value::Bytes(bytes)) => hash_text(hasher, Some(bytes)),
        Some(Value::Bool(value)) => hash_number(hasher, u64::from(value)),
        Some(Value::Int(number)) => hash_number(hasher, number as u64),
        Some(Value::Uint(number)) => hash_number(hasher, number),
        Some(Value::Enum(number)) => hash_number(hasher, i64::from(number) as u64),
        // No path leads to the other types: `field` refuses them.
        _ => hash_text(hasher, None),
    }
}

/// 0 is the key of a slot that was never used.
fn finish(hasher: &SipHasher13) -> u64 {
    hasher.finish().max(1)
}

/// Finds a field of a method's request whose values can be told apart.
fn field(datapath_context: &DatapathContext, method: u16, path: &str) -> Result<FieldPath, AttachError> {
    let name = datapath_context
        .methods
        .get(usize::from(method))
        .map_or("", |method| &method.path);
    let refused = |problem: String| {
        AttachError::new(format!(
            "per: \"message:{path}\" cannot be read of the requests of {name}: {problem}; name another field, or attach \
             the policy to methods whose requests have it"
        ))
    };
    let message = datapath_context
        .message(method, Direction::Request)
        .ok_or_else(|| refused("there is no such method".to_owned()))?;
    let found = datapath_context
        .tables
        .field_path(message, path)
        .map_err(|error| refused(error.to_string()))?;
    let last = last_field(&datapath_context.schema, message, path);
    match last.map(|field| (&field.cardinality, field.ty)) {
        Some((Cardinality::Repeated { .. } | Cardinality::Map(_), _)) => {
            Err(refused("it is a list or a map".to_owned()))
        }
        Some((_, Type::Message(_))) => Err(refused("it is a message, not a value".to_owned())),
        Some((_, Type::Float | Type::Double)) => Err(refused("it is a floating-point number".to_owned())),
        _ => Ok(found),
    }
}

fn last_field<'a>(schema: &'a Schema, message: MessageId, path: &str) -> Option<&'a Field> {
    let (first, rest) = path
        .split_once('.')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    let field = schema
        .message(message)
        .fields()
        .find(|field| field.name == first)?;
    match (rest, field.ty) {
        (None, _) => Some(field),
        (Some(rest), Type::Message(inner)) => last_field(schema, inner, rest),
        (Some(_), _) => None,
    }
}

/// What tells two configurations apart whose keys mean different things.
pub(crate) fn fingerprint(parts: &[KeyPart], seed: KeySeed) -> u64 {
    let mut hasher = seed.hasher();
    parts
        .iter()
        .for_each(|part| hash_text(&mut hasher, Some(part.to_string().as_bytes())));
    finish(&hasher)
}
