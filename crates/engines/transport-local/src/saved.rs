//! Saved ends of connections within a node.
//!
//! For a successor in this process an end saves what it counts; the directions stay where they are, and the other end goes on
//! using them meanwhile ([`LocalTransport::restore`]). For another process each end also saves what it has put in its
//! direction, and the two ends are made again together ([`restore_pair`]); no runtime polls either of them while they are
//! saved.
//!
//! Version 3, or 2 where no names are to be saved. Version 1 said only how many calls were cut short, and cannot be continued.

use std::borrow::Cow;
use std::sync::Arc;

use provost_datapath::{
    Body, Buffer, ConnectionSignals, FieldReader, FieldWriter, MissingMethods, RestoreError, Restorer,
    SavedField, SavedState, Saver, Step, Successor,
};
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, SERVICE_METHODS_MAX};

use crate::direction::{BodyReturn, CallRefusal, DIRECTION_STEPS_MAX, LocalDirection};
use crate::{
    ConnectionState, DirectionHold, End, KIND, LocalEnd, LocalTransport, MethodMap, PeerWake, Role, next_pair,
};

/// The form with the names of methods that the server lacks.
const VERSION: u32 = 3;
/// The form without such names, which earlier programs read: what an end saves that has none.
const NAMELESS_VERSION: u32 = 2;
/// Calls that an end has open: those that the frontends of both ends count, and those that begin or end meanwhile.
const OPEN_CALLS_MAX: usize = 4 * CALLS_IN_FLIGHT_MAX;

/// An end of a connection that another process saved, and what it gets here.
pub struct SavedEnd<'a> {
    pub state: &'a SavedState,
    /// What is not a step, and how the other end wakes this one.
    pub end: End,
    /// Where what the state names comes from.
    pub restorer: &'a mut dyn Restorer,
}

/// Which pair a saved end belongs to, as its process counted, and whether it is the client's.
pub fn saved_pair(state: &SavedState) -> Result<(u64, bool), RestoreError> {
    let mut fields = open(state)?;
    let pair = fields.u64()?;
    Ok((
        pair,
        matches!(restore_role(state.version, &mut fields)?, Role::Client),
    ))
}

/// Goes on with a connection of which another process saved both ends.
pub fn restore_pair(
    client: SavedEnd<'_>,
    server: SavedEnd<'_>,
) -> Result<(LocalTransport, LocalTransport), RestoreError> {
    let (client_wake, server_wake) = (client.end.wake, server.end.wake);
    let mut at_client = RestoredEnd::load(client.state, client.restorer)?;
    let mut at_server = RestoredEnd::load(server.state, server.restorer)?;
    let fits = at_client.pair == at_server.pair
        && matches!(
            (&at_client.role, &at_server.role),
            (Role::Client, Role::Server(_))
        );
    if !fits {
        return Err(damaged("the two ends are not of one connection"));
    }
    let (to_server, to_client) = (at_client.take_direction()?, at_server.take_direction()?);
    for (direction, receiver) in [(&to_server, &at_server), (&to_client, &at_client)] {
        if receiver.deserted {
            direction.desert();
        }
    }
    let pair = next_pair();
    let (to_server, to_client) = (Arc::new(to_server), Arc::new(to_client));
    Ok((
        at_client.end(pair, client.end.link, server_wake, &to_server, &to_client),
        at_server.end(pair, server.end.link, client_wake, &to_client, &to_server),
    ))
}

/// Goes on with an end whose other end was gone when it was saved: it ends in order.
pub fn restore_alone(saved: SavedEnd<'_>) -> Result<LocalTransport, RestoreError> {
    let mut restored = RestoredEnd::load(saved.state, saved.restorer)?;
    let out = restored.take_direction()?;
    let incoming = LocalDirection::new();
    for step in restored.left.drain(..) {
        incoming.put(step);
    }
    incoming.close();
    out.desert();
    let (out, incoming) = (Arc::new(out), Arc::new(incoming));
    Ok(restored.end(next_pair(), saved.end.link, Arc::new(Nobody), &out, &incoming))
}

/// The other end of a connection whose other end is gone.
struct Nobody;

impl PeerWake for Nobody {
    fn wake(&self) {}
}

impl LocalTransport {
    /// A handle for a successor in this process.
    #[must_use]
    pub fn handle(&self) -> LocalEnd {
        LocalEnd {
            pair: self.pair,
            hold: Arc::downgrade(&self.hold),
        }
    }

    /// Goes on with an end of this process that was saved. Its predecessor is still there, and is dropped next.
    pub fn restore(
        state: &SavedState,
        end: &LocalEnd,
        link: Arc<ConnectionSignals>,
        restorer: &mut dyn Restorer,
    ) -> Result<LocalTransport, RestoreError> {
        let restored = RestoredEnd::load(state, restorer)?;
        let hold = end.hold.upgrade().filter(|_| restored.pair == end.pair);
        let hold =
            hold.ok_or_else(|| damaged("it is of a connection that is gone, or of another process"))?;
        if restored.direction.is_some() {
            return Err(damaged("it was saved for another process"));
        }
        Ok(LocalTransport {
            role: restored.role,
            pair: restored.pair,
            link,
            hold,
            lent: restored.lent,
            open: restored.open.into_iter().collect(),
            state: restored.state,
        })
    }

    pub(crate) fn save_end(&self, saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        out.u64(self.pair);
        save_role(&self.role, &mut out);
        out.u8(match self.state {
            ConnectionState::Open => 0,
            ConnectionState::Closing => 1,
            ConnectionState::Ended => 2,
        });
        out.count(self.lent);
        out.count(self.open.len());
        self.open.iter().for_each(|call| out.u64(*call));
        let elsewhere = saver.successor() == Successor::OtherProcess;
        out.flag(elsewhere);
        if elsewhere {
            self.save_direction(saver, &mut out);
        }
        let version = match &self.role {
            Role::Server(Some(map)) if !map.missing.is_empty() => VERSION,
            Role::Server(_) | Role::Client => NAMELESS_VERSION,
        };
        SavedState::new(KIND, version, out)
    }

    /// What this end has put in its direction; and what is left in the other one, if nobody is there to save it.
    fn save_direction(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        let DirectionHold {
            out: direction,
            incoming,
            ..
        } = &*self.hold;
        out.flag(direction.is_closed());
        out.flag(direction.drains());
        out.flag(incoming.is_deserted());
        let [steps, returns, refusals] = direction.lengths();
        let (mut tokens, mut refused) = (FieldWriter::new(), FieldWriter::new());
        out.count(steps);
        direction.look(
            |step| step.save(saver, out),
            |back| tokens.u64(back.token),
            |refusal| {
                refused.u64(refusal.call);
                refused.code(refusal.code);
                refused.text(&refusal.reason);
            },
        );
        out.count(returns);
        out.bytes.append(&mut tokens.bytes);
        out.count(refusals);
        out.bytes.append(&mut refused.bytes);
        let left = if incoming.is_closed() {
            incoming.lengths()[0]
        } else {
            0
        };
        out.count(left);
        if left > 0 {
            incoming.look(|step| step.save(saver, out), |_| {}, |_| {});
        }
    }
}

/// What is in a saved end.
struct RestoredEnd {
    pair: u64,
    role: Role,
    state: ConnectionState,
    lent: usize,
    open: Vec<u64>,
    /// What it had put in its direction, if it was saved for another process.
    direction: Option<LocalDirection>,
    /// Whether it takes nothing more.
    deserted: bool,
    /// What a peer that is gone had put in the other direction.
    left: Vec<Step>,
}

impl RestoredEnd {
    fn load(state: &SavedState, restorer: &mut dyn Restorer) -> Result<RestoredEnd, RestoreError> {
        let mut fields = open(state)?;
        let mut restored = RestoredEnd {
            pair: fields.u64()?,
            role: restore_role(state.version, &mut fields)?,
            state: match fields.u8()? {
                0 => ConnectionState::Open,
                1 => ConnectionState::Closing,
                2 => ConnectionState::Ended,
                other => return Err(fields.damaged(format!("an end in the unknown state {other}"))),
            },
            lent: fields.count(DIRECTION_STEPS_MAX)?,
            open: Vec::new(),
            direction: None,
            deserted: false,
            left: Vec::new(),
        };
        for _ in 0..fields.count(OPEN_CALLS_MAX)? {
            restored.open.push(fields.u64()?);
        }
        if fields.flag()? {
            restored.load_direction(&mut fields, restorer)?;
        }
        fields.end()?;
        Ok(restored)
    }

    fn load_direction(
        &mut self,
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<(), RestoreError> {
        let direction = LocalDirection::new();
        let (closed, drains) = (fields.flag()?, fields.flag()?);
        self.deserted = fields.flag()?;
        let mut lent = 0;
        for step in Step::restore_all(fields, restorer, DIRECTION_STEPS_MAX)? {
            lent += usize::from(matches!(step.body, Body::Gathered(_)));
            direction.put(step);
        }
        for _ in 0..fields.count(DIRECTION_STEPS_MAX)? {
            lent += 1;
            direction.give_back(BodyReturn {
                token: fields.u64()?,
                buffer: Buffer::default(),
            });
        }
        for _ in 0..fields.count(DIRECTION_STEPS_MAX)? {
            direction.refuse(CallRefusal {
                call: fields.u64()?,
                code: fields.code()?,
                reason: Cow::Owned(fields.text()?.to_owned()),
            });
        }
        self.left = Step::restore_all(fields, restorer, DIRECTION_STEPS_MAX)?;
        if lent != self.lent && self.state != ConnectionState::Ended {
            return Err(fields.damaged(format!(
                "{} bodies are lent, and {lent} are in the queue",
                self.lent
            )));
        }
        if closed {
            direction.close();
        }
        if drains {
            direction.set_drains();
        }
        self.direction = Some(direction);
        Ok(())
    }

    fn take_direction(&mut self) -> Result<LocalDirection, RestoreError> {
        let direction = self.direction.take();
        direction.ok_or_else(|| damaged("it was saved for a successor in its own process"))
    }

    fn end(
        self,
        pair: u64,
        link: Arc<ConnectionSignals>,
        peer: Arc<dyn PeerWake>,
        out: &Arc<LocalDirection>,
        incoming: &Arc<LocalDirection>,
    ) -> LocalTransport {
        LocalTransport {
            role: self.role,
            pair,
            link,
            hold: Arc::new(DirectionHold {
                out: out.clone(),
                incoming: incoming.clone(),
                peer,
            }),
            lent: self.lent,
            open: self.open.into_iter().collect(),
            state: self.state,
        }
    }
}

fn save_role(role: &Role, out: &mut FieldWriter) {
    match role {
        Role::Client => out.u8(0),
        Role::Server(None) => out.u8(1),
        Role::Server(Some(map)) => {
            out.u8(2);
            out.count(map.methods.len());
            for method in &map.methods {
                out.flag(method.is_some());
                out.u16(method.unwrap_or(0));
            }
            if !map.missing.is_empty() {
                map.missing.save(out);
            }
        }
    }
}

fn restore_role(version: u32, fields: &mut FieldReader<'_>) -> Result<Role, RestoreError> {
    match fields.u8()? {
        0 => Ok(Role::Client),
        1 => Ok(Role::Server(None)),
        2 => {
            let mut methods = Vec::new();
            for _ in 0..fields.count(SERVICE_METHODS_MAX)? {
                let (known, method) = (fields.flag()?, fields.u16()?);
                methods.push(known.then_some(method));
            }
            let missing = if version > NAMELESS_VERSION {
                SavedField::restore(fields)?
            } else {
                MissingMethods::default()
            };
            Ok(Role::Server(Some(MethodMap { methods, missing })))
        }
        other => Err(fields.damaged(format!("an end of the unknown role {other}"))),
    }
}

fn open(state: &SavedState) -> Result<FieldReader<'_>, RestoreError> {
    let fields = state.open(KIND, VERSION)?;
    match state.version {
        NAMELESS_VERSION | VERSION => Ok(fields),
        _ => Err(fields.damaged("version 1 had nothing to go on from")),
    }
}

fn damaged(reason: &str) -> RestoreError {
    RestoreError::Damaged {
        kind: KIND,
        reason: reason.to_owned(),
    }
}
