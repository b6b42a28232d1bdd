//! [`App`]: this process at its node's service, attached and kept attached.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use provost_shm::{TimeSliceChoice, now_ns};

use crate::attach::{AttachConfig, attach};
use crate::channel::ChannelInner;
use crate::fork::refuse_child;
use crate::link::{Link, Observer, SPIN_DEFAULT, Waits, block_on};
use crate::reactor::Timer;
use crate::status::{Code, Status};
use crate::waker_list::{WakerList, WakerPlace};

/// Time before an attempt to attach or connect again, the first and the most. It doubles with each failure.
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Channels of an app that are being connected again at a time. The service carries out 64 requests of an app at a time.
const ATTEMPTS_MAX: usize = 32;

/// This process's attachment to the service of its node. Channels and servers use [`App::global`] unless they are
/// told otherwise, so most programs never name one.
///
/// When the service goes away, every open call ends as `UNAVAILABLE`; the app attaches again by itself as soon as
/// there is a service, and its channels and servers come back with it.
///
/// A process that forks must not use an app, or anything that came from it, in the child.
///
/// ```no_run
/// use std::time::Duration;
///
/// let app = provost::App::builder()
///     .socket("/run/user/1000/provostd.sock")
///     .name("inventory")
///     .spin(Duration::from_micros(20))
///     .attach()?;
/// # Ok::<_, provost::Status>(())
/// ```
#[derive(Clone)]
pub struct App {
    inner: Arc<AppInner>,
}

/// Says how an [`App`] attaches.
#[derive(Clone, Debug)]
pub struct AppBuilder {
    config: AttachConfig,
}

pub(crate) struct AppInner {
    config: AttachConfig,
    state: Mutex<AppState>,
}

#[derive(Default)]
struct AppState {
    link: Option<Arc<Link>>,
    /// Those that want to be connected.
    channels: Vec<Weak<ChannelInner>>,
    /// Who waits for a link.
    waiters: WakerList,
    /// Whether the thread that puts things back in order is at work.
    has_keeper: bool,
    /// Where the keeper waits for it.
    keeper: WakerList,
}

impl App {
    /// Says how to attach.
    #[must_use]
    pub fn builder() -> AppBuilder {
        AppBuilder {
            config: AttachConfig {
                socket: None,
                name: program_name(),
                submission_slots: 0,
                completion_slots: 0,
                busy_poll: false,
                waits: Waits {
                    spin_ns: SPIN_DEFAULT.as_nanos() as u64,
                    time_slice: TimeSliceChoice::Auto,
                },
            },
        }
    }

    /// The app of this process, attached when it is first asked for: to the socket that `PROVOST_SOCKET` names, or
    /// `/run/provost/provostd.sock`.
    pub fn global() -> Result<App, Status> {
        App::global_or(AppBuilder::attach)
    }

    /// The app of this process, which attaches as soon as there is a node's service, if there is none now. Programs that may
    /// start before their node begin with it.
    pub fn global_lazily() -> Result<App, Status> {
        App::global_or(AppBuilder::attach_lazily)
    }

    fn global_or(attach: impl FnOnce(AppBuilder) -> Result<App, Status>) -> Result<App, Status> {
        static GLOBAL: Mutex<Option<App>> = Mutex::new(None);
        let mut global = GLOBAL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(app) = &*global {
            return Ok(app.clone());
        }
        let app = attach(App::builder())?;
        Ok(global.insert(app).clone())
    }

    pub(crate) fn inner(&self) -> &Arc<AppInner> {
        &self.inner
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_attached = self.inner.link().is_some();
        f.debug_struct("App")
            .field("name", &self.inner.config.name)
            .field("is_attached", &is_attached)
            .finish()
    }
}

impl AppBuilder {
    /// The service's socket, in place of what the environment says.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> AppBuilder {
        self.config.socket = Some(path.into());
        self
    }

    /// What the app calls itself in the service's logs; by default the program's name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> AppBuilder {
        self.config.name = name.into();
        self
    }

    /// For how long after the last completion those who wait spin, before they sleep (by default 50 µs), and four
    /// times as long while completions follow each other that closely. A spinning task gives its core away, seldom while
    /// nobody else wants it, and lets its executor run others every 5 µs.
    #[must_use]
    pub fn spin(mut self, time: Duration) -> AppBuilder {
        self.config.waits.spin_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Never sleeps while something is waited for, and asks the service not to sleep either. Costs a core each.
    #[must_use]
    pub fn busy_poll(mut self) -> AppBuilder {
        self.config.busy_poll = true;
        self.config.waits.spin_ns = u64::MAX;
        self
    }

    /// Has threads that spin ask the kernel for a short slice of their core, also where a filter of system calls is
    /// in force: it allows `sched_getattr` and `sched_setattr`. Without a filter they do so by themselves, since calls then wait
    /// less beside other work; the share of the core that a thread gets stays what it was.
    #[must_use]
    pub fn short_time_slice(mut self) -> AppBuilder {
        self.config.waits.time_slice = TimeSliceChoice::Short;
        self
    }

    /// Leaves the slices of threads that spin as they are.
    #[must_use]
    pub fn keep_time_slice(mut self) -> AppBuilder {
        self.config.waits.time_slice = TimeSliceChoice::Kernel;
        self
    }

    /// Slots of the submission and of the completion ring, powers of two, in place of the service's default.
    #[must_use]
    pub fn rings(mut self, submission_slots: u32, completion_slots: u32) -> AppBuilder {
        self.config.submission_slots = submission_slots;
        self.config.completion_slots = completion_slots;
        self
    }

    /// Attaches. Blocks for as long as the service takes to answer, usually well under a millisecond.
    pub fn attach(self) -> Result<App, Status> {
        let app = self.unattached()?;
        let link = app.inner.attach()?;
        app.inner.state().link = Some(link);
        Ok(app)
    }

    /// Attaches as soon as there is a node's service, which may start after this program: a server waits for it
    /// ([`ServerBuilder::on_ready`](crate::ServerBuilder::on_ready) tells when it serves), and so does a channel that connects
    /// lazily. Blocks for no longer than [`AppBuilder::attach`].
    ///
    /// # Errors
    /// When a service is there and refuses the app, for instance by a rule of its configuration.
    pub fn attach_lazily(self) -> Result<App, Status> {
        let app = self.unattached()?;
        match app.inner.attach_now() {
            Ok(_) => Ok(app),
            Err(status) if status.code() == Code::Unavailable => {
                app.inner.keep();
                Ok(app)
            }
            Err(status) => Err(status),
        }
    }

    fn unattached(self) -> Result<App, Status> {
        refuse_child()?;
        let inner = Arc::new(AppInner {
            config: self.config,
            state: Mutex::default(),
        });
        Ok(App { inner })
    }
}

impl AppInner {
    fn attach(self: &Arc<Self>) -> Result<Arc<Link>, Status> {
        let attachment = attach(&self.config)?;
        let observer = LinkObserver(Arc::downgrade(self));
        Link::start(attachment, Box::new(observer))
            .map_err(|error| Status::resource_exhausted(format!("no reactor for the attachment: {error}")))
    }

    /// The link, if there is one now.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.state().link.clone().filter(|link| !link.is_dead())
    }

    /// Waits for a link.
    pub(crate) async fn wait_for_link(self: &Arc<Self>) -> Arc<Link> {
        let place = self.state().waiters.place();
        std::future::poll_fn(|context| {
            if let Some(link) = self.link() {
                return std::task::Poll::Ready(link);
            }
            place.register(context.waker());
            self.keep();
            // It may have come before the waker was there.
            self.link()
                .map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }

    /// Attaches, and tells whoever waits for that.
    fn attach_now(self: &Arc<Self>) -> Result<Arc<Link>, Status> {
        let link = self.attach()?;
        let mut state = self.state();
        state.link = Some(link.clone());
        let waiters = state.waiters.clone();
        drop(state);
        waiters.wake_all();
        Ok(link)
    }

    /// The channels that are in use.
    fn channels(&self) -> Vec<Arc<ChannelInner>> {
        self.state().channels.iter().filter_map(Weak::upgrade).collect()
    }

    /// Keeps a channel connected from now on.
    pub(crate) fn add_channel(&self, channel: &Arc<ChannelInner>) {
        let mut state = self.state();
        state.channels.retain(|channel| channel.strong_count() > 0);
        state.channels.push(Arc::downgrade(channel));
    }

    /// Has everything put back in order, in a thread of its own for as long as that takes.
    pub(crate) fn keep(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().has_keeper, true) {
            return;
        }
        let app = Arc::downgrade(self);
        let keeper = std::thread::Builder::new().name("provost-keeper".to_owned());
        if keeper.spawn(move || Keeper::new(app).run()).is_err() {
            // Without a thread now, whoever finds something down next tries again.
            self.state().has_keeper = false;
        }
    }

    /// As [`AppInner::keep`], for what was lost or added just now.
    pub(crate) fn keep_at_once(self: &Arc<Self>) {
        self.keep();
        let keeper = self.state().keeper.clone();
        keeper.wake_all();
    }

    fn state(&self) -> MutexGuard<'_, AppState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AppInner {
    fn drop(&mut self) {
        if let Some(link) = self.state().link.take() {
            link.end();
        }
    }
}

struct LinkObserver(Weak<AppInner>);

impl Observer for LinkObserver {
    fn connection_lost(&self, link: u64, connection: u32, status: Status) {
        let Some(app) = self.0.upgrade() else { return };
        let channels = app.state().channels.clone();
        let lost = channels.iter().filter_map(Weak::upgrade).filter(|channel| {
            channel.lose(
                |current| current.link.number == link && current.number == connection,
                &status,
            )
        });
        if lost.count() > 0 {
            app.keep_at_once();
        }
    }

    fn link_lost(&self, link: u64) {
        let Some(app) = self.0.upgrade() else { return };
        let channels = app.state().channels.clone();
        let status = Status::unavailable("the node's service went away");
        for channel in channels.iter().filter_map(Weak::upgrade) {
            channel.lose(|current| current.link.number == link, &status);
        }
        app.keep_at_once();
    }
}

/// Attaches and connects again whatever is not, waiting longer after each failure. Channels do not wait for each other.
struct Keeper {
    app: Weak<AppInner>,
    attach: Backoff,
}

impl Keeper {
    fn new(app: Weak<AppInner>) -> Keeper {
        Keeper {
            app,
            attach: Backoff::new(),
        }
    }

    fn run(mut self) {
        while let Some(app) = self.app.upgrade() {
            let Some(link) = self.link(&app) else {
                drop(app);
                std::thread::sleep(self.attach.next());
                continue;
            };
            let place = app.state().keeper.place();
            drop(app);
            let mut reconnecting = Vec::new();
            block_on(poll_fn(|context| {
                self.poll_channels(&link, &place, &mut reconnecting, context)
            }));
            if self.app.upgrade().is_none_or(|app| Self::is_done(&app)) {
                return;
            }
            if link.is_dead() {
                // A node that attaches this app and lets it go at once is not asked without a pause.
                std::thread::sleep(self.attach.next());
            } else {
                self.attach.reset();
            }
        }
    }

    /// The link, if there is one now or can be.
    fn link(&self, app: &Arc<AppInner>) -> Option<Arc<Link>> {
        match app.link().map_or_else(|| app.attach_now(), Ok) {
            Ok(link) => Some(link),
            Err(status) => {
                let channels = app.channels();
                channels.iter().for_each(|channel| channel.note_no_link(&status));
                None
            }
        }
    }

    /// Connects channels again that are not connected, those included that are lost meanwhile. Ready when all are, or the link is
    /// over.
    fn poll_channels(
        &self,
        link: &Arc<Link>,
        place: &WakerPlace,
        reconnecting: &mut Vec<LostChannel>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        // Before looking, so that what is lost after that is looked at again.
        place.register(context.waker());
        let Some(app) = self.app.upgrade().filter(|_| !link.is_dead()) else {
            return Poll::Ready(());
        };
        for channel in app.channels().iter().filter(|channel| !channel.is_connected()) {
            if !reconnecting.iter().any(|other| other.is_of(channel)) {
                reconnecting.push(LostChannel::of(channel));
            }
        }
        let under_way = reconnecting.iter().filter(|channel| channel.attempt.is_some());
        let mut free = ATTEMPTS_MAX.saturating_sub(under_way.count());
        reconnecting.retain_mut(|channel| channel.poll(link, &mut free, context).is_pending());
        if reconnecting.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Ends the keeper if nothing was lost meanwhile.
    fn is_done(app: &AppInner) -> bool {
        let mut state = app.state();
        let is_attached = state.link.as_ref().is_some_and(|link| !link.is_dead());
        let is_connected =
            |channel: &Weak<ChannelInner>| channel.upgrade().is_none_or(|channel| channel.is_connected());
        let is_done = is_attached && state.channels.iter().all(is_connected);
        state.has_keeper = !is_done;
        is_done
    }
}

type ConnectAttempt = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// A channel that is connected again.
struct LostChannel {
    channel: Weak<ChannelInner>,
    attempt: Option<ConnectAttempt>,
    /// What comes before the next attempt.
    pause: Timer,
    backoff: Backoff,
}

impl LostChannel {
    fn of(channel: &Arc<ChannelInner>) -> LostChannel {
        LostChannel {
            channel: Arc::downgrade(channel),
            attempt: None,
            pause: Timer::new(Duration::ZERO),
            backoff: Backoff::new(),
        }
    }

    fn is_of(&self, channel: &Arc<ChannelInner>) -> bool {
        std::ptr::eq(self.channel.as_ptr(), Arc::as_ptr(channel))
    }

    /// Ready when the channel is connected, or nobody has it any more. Begins an attempt if so many more may be under way.
    fn poll(&mut self, link: &Arc<Link>, free: &mut usize, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(attempt) = &mut self.attempt {
                let connected = ready!(attempt.as_mut().poll(context));
                self.attempt = None;
                // Another one has its turn.
                context.waker().wake_by_ref();
                if connected.is_ok() {
                    return Poll::Ready(());
                }
                self.pause = Timer::new(self.backoff.next());
            }
            ready!(self.pause.poll(context));
            let down = |channel: &Arc<ChannelInner>| !channel.is_connected();
            let Some(channel) = self.channel.upgrade().filter(down) else {
                return Poll::Ready(());
            };
            if *free == 0 {
                return Poll::Pending;
            }
            *free -= 1;
            let link = link.clone();
            self.attempt = Some(Box::pin(async move { channel.connect_over(&link).await }));
        }
    }
}

/// Growing, jittered pauses.
struct Backoff {
    pause: Duration,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { pause: BACKOFF_MIN }
    }

    fn reset(&mut self) {
        self.pause = BACKOFF_MIN;
    }

    /// Between three and five quarters of a pause that doubles each time: so that all who lost the same peer do not
    /// come back at the same moment.
    fn next(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(BACKOFF_MAX);
        pause * 3 / 4 + pause * (now_ns() / 64 % 512) as u32 / 1024
    }
}

fn program_name() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(|| "app".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_start_over() {
        let mut backoff = Backoff::new();
        let first = backoff.next();
        assert!(first >= BACKOFF_MIN * 3 / 4 && first <= BACKOFF_MIN * 5 / 4);
        let last = (0..20).map(|_| backoff.next()).last().unwrap();
        assert!(last >= BACKOFF_MAX * 3 / 4 && last <= BACKOFF_MAX * 5 / 4);
        backoff.reset();
        assert!(backoff.next() <= BACKOFF_MIN * 5 / 4);
    }
}
