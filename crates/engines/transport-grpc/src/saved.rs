//! What a successor is given. All numbers are little-endian.
//!
//! | form | says | then |
//! |---|---|---|
//! | 1 | the calls that are under way | they end at the successor, as UNAVAILABLE and with the reason, and the app connects anew |
//! | 2 | two places of links and their calls, with duplicates of the links' sockets | they go on: the server notices nothing |
//! | 3 | the same of more links, with how many places there are before them | likewise |
//!
//! The others than the first go to who reads them ([`Saver::newest_form`]), of an engine whose links can all be carried: those within
//! TLS 1.2 cannot be.

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datapath::{
    ConnectionEnd, ConnectionSignals, FieldReader, FieldWriter, Nanos, PrivateBytes, RestoreError, Restorer,
    SavedField, SavedState, Saver, Step,
};
use provost_grpc::EncodingSet;
use provost_wire::Code;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::KIND;
use crate::call::{CallPlace, GrpcCall, StreamPlace};
use crate::carrier::ByteCarrier;
use crate::config::{GrpcMethod, GrpcTransportConfig, REFUSALS_MAX};
use crate::engine::{GrpcTransport, LINKS_MAX, LinkDialer, TransportStage, empty_places};
use crate::link::GrpcLink;
use crate::link_list::LinkList;
use crate::link_watch::LinkWatch;

/// The form of a state that says which calls are under way, and no more.
const CALLS_FORM: u32 = 1;
/// That of two places of links, which is written wherever it says all.
const PAIR_FORM: u32 = 2;
/// Places of links in that form.
pub(crate) const PAIR_PLACES: usize = 2;
/// The newest form of the saved state: what a process says that it reads before it is given one.
pub const STATE_FORM: u32 = 3;
/// Bytes of the state of one engine with its links, at most. Of one that has more, the calls end.
pub const STATE_BYTES_MAX: usize = 512 << 20;
/// What calls are told.
const REASON: &str =
    "the node's service was replaced, and this connection to a gRPC server could not go over: call again";
/// Calls of one state that are read.
const CALLS_MAX: usize = CALLS_IN_FLIGHT_MAX + REFUSALS_MAX;

/// Makes what carries a link, of its socket and of what [`ByteCarrier::save`] has appended.
pub type CarrierRestorer<'a> =
    &'a mut dyn FnMut(OwnedFd, &mut FieldReader<'_>) -> Result<Box<dyn ByteCarrier>, RestoreError>;

/// What an engine is made of in the place of one that was saved.
pub struct RestoredTransportParts<'a> {
    /// Duplicates of the sockets of its links.
    pub sockets: Vec<OwnedFd>,
    pub carrier: CarrierRestorer<'a>,
    /// Makes what connects to the server once more, of [`crate::GrpcTransportParts::server`].
    pub dialer: &'a mut dyn FnMut(&[u8]) -> LinkDialer,
    /// The methods of the service, by index.
    pub methods: Arc<[GrpcMethod]>,
    pub config: GrpcTransportConfig,
    /// In which share messages count that wait for the server.
    pub share: Arc<PrivateBytes>,
    /// Where others see its links and what is counted on them.
    pub list: Arc<LinkList>,
    /// What is not a step.
    pub signals: Arc<ConnectionSignals>,
    pub restorer: &'a mut dyn Restorer,
    pub now: Nanos,
}

impl GrpcTransport {
    pub(crate) fn saved(&self, saver: &mut dyn Saver) -> SavedState {
        let form = self.form_of_links();
        if saver.newest_form(KIND) < form || self.carried_sockets().is_none() {
            return self.saved_calls();
        }
        let mut out = FieldWriter::new();
        self.save_links(form, saver, &mut out);
        if out.bytes.len() > STATE_BYTES_MAX {
            return self.saved_calls();
        }
        SavedState::new(KIND, form, out)
    }

    pub(crate) fn saved_calls(&self) -> SavedState {
        let mut out = FieldWriter::new();
        let refused = self.refusals.iter().map(|step| step.call);
        let mut calls: Vec<u64> = self.calls.keys().copied().chain(refused).collect();
        calls.sort_unstable();
        out.count(calls.len());
        calls.into_iter().for_each(|call| out.u64(call));
        SavedState::new(KIND, CALLS_FORM, out)
    }

    /// The sockets of the links, if a successor can go on with all of them.
    pub(crate) fn carried_sockets(&self) -> Option<Vec<BorrowedFd<'_>>> {
        if self.stage != TransportStage::Open {
            return None;
        }
        self.links
            .iter()
            .flatten()
            .map(GrpcLink::carried_socket)
            .collect()
    }

    /// The oldest form in which all links can be said.
    fn form_of_links(&self) -> u32 {
        if self.links.iter().skip(PAIR_PLACES).all(Option::is_none) {
            PAIR_FORM
        } else {
            STATE_FORM
        }
    }

    fn save_links(&self, form: u32, saver: &mut dyn Saver, out: &mut FieldWriter) {
        self.head.authority.save(out);
        out.run(&self.server);
        out.u32(self.dials_left);
        self.server_accepts.save(out);
        out.text(&self.last_end);
        let places = if form == PAIR_FORM {
            PAIR_PLACES
        } else {
            out.count(self.links.len());
            self.links.len()
        };
        for at in 0..places {
            let link = self.links.get(at).and_then(Option::as_ref);
            out.flag(link.is_some());
            if let Some(link) = link {
                link.save(out);
            }
        }
        let mut calls: Vec<(&u64, &GrpcCall)> = self.calls.iter().collect();
        calls.sort_unstable_by_key(|(id, _)| **id);
        out.count(calls.len());
        for (id, call) in calls {
            out.u64(*id);
            call.save(out);
        }
        out.list(self.waiting.iter());
        out.list(self.ready.iter());
        Step::save_all(self.refusals.iter(), saver, out);
    }

    /// The engine in the place of one that was saved: it goes on with its links, or ends the calls that were under way. Nothing that
    /// the server can see is done before it is polled.
    ///
    /// # Errors
    /// The state is not one of this engine.
    pub fn restore(
        state: &SavedState,
        parts: RestoredTransportParts<'_>,
    ) -> Result<GrpcTransport, RestoreError> {
        let mut fields = state.open(KIND, STATE_FORM)?;
        if state.version == CALLS_FORM {
            return GrpcTransport::restore_calls(fields, parts.signals);
        }
        let transport = GrpcTransport::restore_links(state.version, &mut fields, parts)?;
        fields.end()?;
        Ok(transport)
    }

    fn restore_calls(
        mut fields: FieldReader<'_>,
        signals: Arc<ConnectionSignals>,
    ) -> Result<GrpcTransport, RestoreError> {
        let count = fields.count(CALLS_MAX)?;
        let calls: Result<Vec<u64>, RestoreError> = (0..count).map(|_| fields.u64()).collect();
        fields.end()?;
        signals.set_ended(ConnectionEnd {
            code: Code::Unavailable,
            reason: REASON.to_owned(),
        });
        let mut transport = GrpcTransport::ended(signals);
        for call in calls? {
            transport.calls.insert(call, GrpcCall::new(0, false, false));
            transport.end_call(call, Code::Unavailable, REASON);
        }
        Ok(transport)
    }

    fn restore_links(
        form: u32,
        fields: &mut FieldReader<'_>,
        parts: RestoredTransportParts<'_>,
    ) -> Result<GrpcTransport, RestoreError> {
        let mut transport = GrpcTransport::ended(parts.signals);
        transport.stage = TransportStage::Open;
        transport.config = parts.config;
        transport.old_at = parts.config.old_at(parts.now);
        transport.methods = parts.methods;
        transport.list = parts.list;
        (transport.now, transport.looked_at) = (parts.now, parts.now);
        transport.head.authority = Option::restore(fields)?;
        transport.server = fields.run()?.to_vec();
        transport.dialer = (parts.dialer)(&transport.server);
        transport.dials_left = fields.u32()?;
        transport.server_accepts = Option::<EncodingSet>::restore(fields)?;
        transport.last_end = fields.text()?.to_owned();
        let mut sockets = parts.sockets.into_iter();
        let places = match form {
            PAIR_FORM => PAIR_PLACES,
            _ => fields.count(LINKS_MAX)?,
        };
        transport.links = empty_places(&transport.config);
        // A configuration that allows fewer has those that are there go on.
        let places_max = transport.links.len().max(places);
        transport.links.resize_with(places_max, || None);
        transport.watch = LinkWatch::of_places(places_max);
        for at in 0..places {
            if !fields.flag()? {
                continue;
            }
            let socket = sockets
                .next()
                .ok_or_else(|| fields.damaged("the socket of a link is missing"))?;
            let carrier = (parts.carrier)(socket, fields)?;
            let link = GrpcLink::restore(carrier, &transport.config, &parts.share, parts.now, fields)?;
            transport.put_link(at, link);
        }
        transport.await_settings_of_further_links();
        transport.restore_state_of_calls(fields, &parts.share, parts.restorer)?;
        Ok(transport)
    }

    fn restore_state_of_calls(
        &mut self,
        fields: &mut FieldReader<'_>,
        share: &Arc<PrivateBytes>,
        restorer: &mut dyn Restorer,
    ) -> Result<(), RestoreError> {
        for _ in 0..fields.count(CALLS_MAX)? {
            let (id, mut call) = (fields.u64()?, GrpcCall::restore(fields, &self.methods)?);
            call.count_in(share);
            call.plain_ones = self.config.plain_ones();
            self.adopt_call(fields, id, call)?;
        }
        self.waiting = fields.list::<u64>(CALLS_MAX)?.into();
        let waiting: BTreeSet<u64> = self.waiting.iter().copied().collect();
        let waits = |call: &GrpcCall| call.place == CallPlace::Waiting;
        let have_turns = self.calls.iter().filter(|(_, call)| waits(call));
        let have_turns: BTreeSet<u64> = have_turns.map(|(id, _)| *id).collect();
        if waiting.len() != self.waiting.len() || waiting != have_turns {
            return Err(fields.damaged("the calls that wait are not those that have a turn"));
        }
        for id in fields.list(CALLS_MAX)? {
            self.note_ready(id);
        }
        // None waits for ever to be told of its end.
        let has_ended = |call: &GrpcCall| call.end.is_some();
        let ended = self.calls.iter().filter(|(_, call)| has_ended(call));
        let ended: BTreeSet<u64> = ended.map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.note_ready(id));
        self.refusals = Step::restore_all(fields, restorer, REFUSALS_MAX)?.into();
        Ok(())
    }

    /// Puts a call in its place, with what follows from it.
    fn adopt_call(&mut self, fields: &FieldReader<'_>, id: u64, call: GrpcCall) -> Result<(), RestoreError> {
        match call.place {
            CallPlace::Waiting if call.deadline != 0 => {
                self.waiting_deadlines.insert((call.deadline, id));
            }
            CallPlace::Waiting | CallPlace::Over => {}
            CallPlace::Open(place) => self.adopt_stream(fields, place, id)?,
        }
        self.held_cost += call.held_cost();
        self.replay_cost += call.replay_cost;
        match self.calls.insert(id, call) {
            None => Ok(()),
            Some(_) => Err(fields.damaged(format!("call {id} is there twice"))),
        }
    }

    fn adopt_stream(
        &mut self,
        fields: &FieldReader<'_>,
        place: StreamPlace,
        id: u64,
    ) -> Result<(), RestoreError> {
        if self.links.get(place.link).is_none_or(Option::is_none) {
            return Err(fields.damaged(format!("call {id} is on a link that is not there")));
        }
        match self.streams.insert(place, id) {
            None => Ok(()),
            Some(_) => Err(fields.damaged(format!("a stream of call {id} is another's too"))),
        }
    }
}
