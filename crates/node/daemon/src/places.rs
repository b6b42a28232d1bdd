//! Bounded places for those who have connected. When all are taken, a newcomer gets the place of one that does nothing:
//! so whoever only connects keeps nobody out, however often it does.
//!
//! ```text
//! newcomer ─► the party that has most places ─► of those, the one that has asked for nothing and was silent longest
//! ```

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};

/// Bytes after which a stream is one that has asked for something: more than HTTP/2 begins with.
const ASKED_BYTES: usize = 128;

/// How many places there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceBounds {
    pub(crate) all: usize,
    /// Those that one party may have.
    pub(crate) per_party: usize,
    /// For how long nobody loses its place.
    pub(crate) grace: Duration,
}

/// See the module's documentation. A party is a user, or the network of a peer.
#[derive(Debug)]
pub(crate) struct BoundedPlaces<K> {
    bounds: PlaceBounds,
    occupants: Mutex<PlaceOccupants<K>>,
    freed: Notify,
}

#[derive(Debug)]
struct PlaceOccupants<K> {
    by_number: BTreeMap<u64, PlaceOccupant<K>>,
    next: u64,
}

#[derive(Debug)]
struct PlaceOccupant<K> {
    party: K,
    activity: LastActivity,
    /// The place is lost when this is dropped.
    _keeps: oneshot::Sender<()>,
}

/// In the order in which places are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LastActivity {
    has_asked: bool,
    last: Instant,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldPlace<K: Copy + Eq + Hash> {
    places: Arc<BoundedPlaces<K>>,
    number: u64,
    lost: oneshot::Receiver<()>,
}

impl<K: Copy + Eq + Hash> BoundedPlaces<K> {
    pub(crate) fn new(bounds: PlaceBounds) -> Arc<BoundedPlaces<K>> {
        Arc::new(BoundedPlaces {
            bounds,
            occupants: Mutex::new(PlaceOccupants {
                by_number: BTreeMap::new(),
                next: 0,
            }),
            freed: Notify::new(),
        })
    }

    /// A place for a newcomer; none while those who have one are within their grace.
    pub(crate) fn enter(self: &Arc<Self>, party: K) -> Option<HeldPlace<K>> {
        let mut occupants = self.lock();
        let now = Instant::now();
        if let Some(loser) = occupants.must_go(party, self.bounds) {
            let occupant = occupants.by_number.get(&loser)?;
            if now.duration_since(occupant.activity.last) < self.bounds.grace {
                return None;
            }
            occupants.by_number.remove(&loser);
        }
        let (keeps, lost) = oneshot::channel();
        let number = occupants.next;
        occupants.next += 1;
        let occupant = PlaceOccupant {
            party,
            activity: LastActivity {
                has_asked: false,
                last: now,
            },
            _keeps: keeps,
        };
        occupants.by_number.insert(number, occupant);
        Some(HeldPlace {
            places: Arc::clone(self),
            number,
            lost,
        })
    }

    /// Waits for a place until a time.
    pub(crate) async fn enter_until(self: &Arc<Self>, party: K, deadline: Instant) -> Option<HeldPlace<K>> {
        loop {
            let freed = self.freed.notified();
            if let Some(place) = self.enter(party) {
                return Some(place);
            }
            let look_again = (Instant::now() + self.bounds.grace).min(deadline);
            if Instant::now() >= deadline {
                return None;
            }
            // Either way it is looked again.
            let _ = tokio::time::timeout_at(look_again.into(), freed).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, PlaceOccupants<K>> {
        // What it protects is whole between any two statements here.
        self.occupants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> PlaceOccupants<K> {
    /// Who loses its place to one of this party, if there is none for it.
    fn must_go(&self, party: K, bounds: PlaceBounds) -> Option<u64> {
        let mut counts: HashMap<K, usize> = HashMap::new();
        for occupant in self.by_number.values() {
            *counts.entry(occupant.party).or_default() += 1;
        }
        let own = counts.get(&party).copied().unwrap_or(0);
        let largest = counts
            .iter()
            .max_by_key(|(_, count)| **count)
            .map(|(party, _)| *party);
        let from = if own >= bounds.per_party {
            party
        } else if self.by_number.len() >= bounds.all {
            largest?
        } else {
            return None;
        };
        let candidates = self
            .by_number
            .iter()
            .filter(|(_, occupant)| occupant.party == from);
        let first = candidates.min_by_key(|(_, occupant)| occupant.activity);
        first.map(|(number, _)| *number)
    }
}

impl<K: Copy + Eq + Hash> HeldPlace<K> {
    /// Waits until the place is lost.
    pub(crate) async fn lost(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.lost).await;
    }

    fn poll_lost(&mut self, context: &mut Context<'_>) -> bool {
        Pin::new(&mut self.lost).poll(context).is_ready()
    }

    /// Whoever has the place has done something.
    fn note_activity(&self, has_asked: bool) {
        if let Some(occupant) = self.places.lock().by_number.get_mut(&self.number) {
            occupant.activity = LastActivity {
                has_asked,
                last: Instant::now(),
            };
        }
    }
}

impl<K: Copy + Eq + Hash> Drop for HeldPlace<K> {
    fn drop(&mut self) {
        self.places.lock().by_number.remove(&self.number);
        self.places.freed.notify_one();
    }
}

/// A stream of one who has a place. It ends when the place is lost.
#[derive(Debug)]
pub(crate) struct PlacedStream<S, K: Copy + Eq + Hash> {
    stream: S,
    place: HeldPlace<K>,
    bytes_read: usize,
    is_over: bool,
}

impl<S, K: Copy + Eq + Hash> PlacedStream<S, K> {
    pub(crate) fn new(stream: S, place: HeldPlace<K>) -> PlacedStream<S, K> {
        PlacedStream {
            stream,
            place,
            bytes_read: 0,
            is_over: false,
        }
    }

    fn is_lost(&mut self, context: &mut Context<'_>) -> bool {
        self.is_over = self.is_over || self.place.poll_lost(context);
        self.is_over
    }

    fn note_activity(&self) {
        self.place.note_activity(self.bytes_read > ASKED_BYTES);
    }
}

/// Lets the connections end whose places were lost, before another is let in: there are as many descriptors as places, and
/// one more.
pub(crate) async fn let_losers_go() {
    tokio::task::yield_now().await;
}

fn lost() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "others need the place of this connection",
    )
}

impl<S: AsyncRead + Unpin, K: Copy + Eq + Hash + Unpin> AsyncRead for PlacedStream<S, K> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_lost(context) {
            return Poll::Ready(Err(lost()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        if read > 0 {
            this.bytes_read = this.bytes_read.saturating_add(read);
            this.note_activity();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin, K: Copy + Eq + Hash + Unpin> AsyncWrite for PlacedStream<S, K> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.is_lost(context) {
            return Poll::Ready(Err(lost()));
        }
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        if polled.is_ready() {
            this.note_activity();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What counts as one party among peers: an address, and with IPv6 the network that a host has for itself.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: PlaceBounds = PlaceBounds {
        all: 4,
        per_party: 3,
        grace: Duration::ZERO,
    };

    fn is_lost(place: &mut HeldPlace<u32>) -> bool {
        place.poll_lost(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn whoever_has_most_makes_room_and_the_most_silent_first() {
        let places = BoundedPlaces::new(BOUNDS);
        let mut of_one: Vec<_> = (0..3).map(|_| places.enter(1).unwrap()).collect();
        let mut other = places.enter(2).unwrap();
        of_one[0].note_activity(true);
        let mut newcomer = places.enter(3).unwrap();
        assert!(is_lost(&mut of_one[1]) && !is_lost(&mut of_one[0]) && !is_lost(&mut other));
        drop(of_one);
        let mut many: Vec<_> = (0..50).map(|_| places.enter(4).unwrap()).collect();
        assert!(!is_lost(&mut other) && !is_lost(&mut newcomer));
        assert_eq!(
            many.iter_mut()
                .filter_map(|place| (!is_lost(place)).then_some(()))
                .count(),
            2
        );
    }

    #[tokio::test]
    async fn nobody_loses_its_place_within_its_grace() {
        let grace = Duration::from_secs(3600);
        let places = BoundedPlaces::new(PlaceBounds { grace, ..BOUNDS });
        let held: Vec<_> = (0..3).map(|_| places.enter(1).unwrap()).collect();
        assert!(places.enter(1).is_none());
        let soon = Instant::now() + Duration::from_millis(10);
        assert!(places.enter_until(1, soon).await.is_none());
        let later = Instant::now() + Duration::from_secs(20);
        let (entered, ()) = tokio::join!(places.enter_until(1, later), async {
            tokio::task::yield_now().await;
            drop(held);
        });
        assert!(entered.is_some());
    }

    #[test]
    fn a_host_has_one_network() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }
}
