//! Sessions that clients open, and how they make room for each other.

use provost_datagram::handshake::{Accept, MarkUse, Open, PacketFallback, VERSION};
use provost_datagram::packet::Kind;
use provost_datagram::{PACKET_BYTES_MIN, Refusal};
use provost_nic::{Board, ConnectionRole, EntryKind, SLOTS_MAX};

use super::{HostEvent, HostSession, NicHost, SessionState};
use crate::config::HostError;
use crate::handshake::{challenge, control, read_open, refuse, session_id};

/// What a client's Open gets.
enum OpenAnswer {
    Accept(u16),
    Refuse(Refusal),
    /// Nothing: another session makes room, and the client asks again soon.
    Later,
}

impl HostSession {
    fn is_served(&self) -> bool {
        self.role == ConnectionRole::Server && self.state == SessionState::Open
    }

    fn is_leaving(&self) -> bool {
        matches!(self.state, SessionState::Leaving { .. })
    }
}

impl NicHost {
    pub(super) fn receive_open(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        from: u64,
        payload: &[u8],
    ) -> Result<(), HostError> {
        let open = match (read_open(payload), Open::decode(payload)) {
            (Ok(open), _) => open,
            (Err(Some(reason)), Some(open)) => {
                self.send_raw(board, from, refuse(&open, reason));
                return Ok(());
            }
            _ => return Ok(()),
        };
        if !self.secrets.recognizes(now_ns, &from, &open) {
            let cookie = self.secrets.bake(now_ns, &from, &open);
            self.send_raw(board, from, challenge(&open, cookie));
            return Ok(());
        }
        let known = self.opened.get(&(from, open.session, open.token)).copied();
        let answer = match known {
            Some(number) => OpenAnswer::Accept(number),
            None => self.accept(board, now_ns, from, &open)?,
        };
        match answer {
            OpenAnswer::Accept(number) => self.send_accept(board, number, open.nonce),
            OpenAnswer::Refuse(reason) => self.send_raw(board, from, refuse(&open, reason)),
            OpenAnswer::Later => {}
        }
        Ok(())
    }

    fn accept(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        from: u64,
        open: &Open,
    ) -> Result<OpenAnswer, HostError> {
        if !(open.versions.0..=open.versions.1).contains(&VERSION) {
            return Ok(OpenAnswer::Refuse(Refusal::Version));
        }
        let slots = open.slots.min(SLOTS_MAX);
        let packet_bytes = open.packet_bytes.min(self.config.packet_bytes_max);
        if slots == 0 || open.credits == 0 || usize::from(packet_bytes) < PACKET_BYTES_MIN {
            return Ok(OpenAnswer::Refuse(Refusal::Parameters));
        }
        let Some(number) = self.number() else {
            return self.make_room(board, now_ns);
        };
        let token = self.secrets.draw() as u32;
        self.sessions[usize::from(number)] = Some(HostSession {
            role: ConnectionRole::Server,
            state: SessionState::Open,
            token,
            remote: from,
            remote_number: open.session,
            remote_token: open.token,
            slots,
            credits: open.credits.min(u16::from(slots) * self.config.call_credits()),
            packet_bytes,
            request_bytes_max: 0,
            nonce: open.nonce,
            calls: 0,
            areas: 0,
            requests: 0,
            used_ns: now_ns,
            responses: Default::default(),
        });
        self.opened.insert((from, open.session, open.token), number);
        self.load(board, number)?;
        self.events
            .push_back(HostEvent::Accepted(session_id(number, token)));
        Ok(OpenAnswer::Accept(number))
    }

    /// Ends the client's session that was used least recently, if it has been silent for long enough and no request of it waits for its response.
    /// A client that is silent but there asks for another with its next call.
    fn make_room(&mut self, board: &mut impl Board, now_ns: u64) -> Result<OpenAnswer, HostError> {
        if self.sessions.iter().flatten().any(HostSession::is_leaving) {
            return Ok(OpenAnswer::Later);
        }
        let idle_ns_min = self.config.idle_ns_min;
        let is_idle = |session: &HostSession| {
            let is_over = now_ns.saturating_sub(session.used_ns) >= idle_ns_min;
            session.is_served() && session.requests == 0 && is_over
        };
        let numbered = self.sessions.iter().enumerate();
        let idle = numbered.filter_map(|(number, session)| Some((number as u16, session.as_ref()?)));
        let least_used = idle
            .filter(|(_, session)| is_idle(session))
            .min_by_key(|(_, session)| session.used_ns);
        let Some((number, _)) = least_used else {
            return Ok(OpenAnswer::Refuse(Refusal::TooManySessions));
        };
        self.reset(board, now_ns, number)?;
        Ok(OpenAnswer::Later)
    }

    /// Ends a client's session, and tells the client.
    pub(super) fn reset(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        number: u16,
    ) -> Result<(), HostError> {
        let Some(session) = self.sessions[usize::from(number)].as_ref() else {
            return Ok(());
        };
        let reset = control(Kind::Reset, session.remote_number, session.remote_token, &[]);
        let remote = session.remote;
        self.leave(board, now_ns, number)?;
        self.send_raw(board, remote, reset);
        Ok(())
    }

    /// Ends a session whose number is kept until no ring has anything of it.
    pub(super) fn leave(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        number: u16,
    ) -> Result<(), HostError> {
        self.forget(board, number)?;
        self.waiting
            .retain(|(_, head, ..)| head.kind == EntryKind::Raw || head.connection != number);
        let until_ns = now_ns + self.config.handshake_timeout_ns;
        if let Some(session) = self.sessions[usize::from(number)].as_mut() {
            session.state = SessionState::Leaving { until_ns };
            self.opened
                .remove(&(session.remote, session.remote_number, session.remote_token));
            self.events
                .push_back(HostEvent::Ended(session_id(number, session.token)));
        }
        Ok(())
    }

    /// Has sessions that are over give their numbers back, as all rings are empty.
    pub(super) fn free_numbers(&mut self, now_ns: u64) {
        for session in &mut self.sessions {
            session.take_if(
                |session| matches!(session.state, SessionState::Leaving { until_ns } if until_ns <= now_ns),
            );
        }
    }

    fn send_accept(&mut self, board: &mut impl Board, number: u16, nonce: u64) {
        let Some(session) = self.sessions[usize::from(number)].as_ref() else {
            return;
        };
        let accept = Accept {
            nonce,
            version: VERSION,
            slots: session.slots,
            session: number,
            token: session.token,
            credits: session.credits,
            packet_bytes: session.packet_bytes,
            message_bytes_max: self.config.message_bytes_max(session.packet_bytes) as u32,
            marks: MarkUse::Unread,
            fallback: PacketFallback::Off,
        };
        let packet = control(
            Kind::Accept,
            session.remote_number,
            session.remote_token,
            &accept.encode(),
        );
        let remote = session.remote;
        self.send_raw(board, remote, packet);
    }
}
