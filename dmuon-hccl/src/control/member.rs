//! A rank's side of its control connection.

use super::{
    board::Board,
    error::{Refusal, RendezvousError},
    frame,
    log::{CallLog, Place},
    message::{Answer, Hello, Started, ToHost, ToRank, VERSION, Wait},
    spawn,
    watch::Watch,
};
use dmuon_core::{Call, CallSite, Error, Rank};
use std::{
    io,
    net::{Shutdown, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Between two signs of life.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Between two attempts to reach the host.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Warnings about ranks that are busy are no closer together than this.
const WARNING_PAUSE: Duration = Duration::from_secs(1);

/// How much longer than its deadline a rank waits for the host to say who is missing.
pub(super) const VERDICT_TIME: Duration = Duration::from_millis(1800);

/// Who a rank says it is.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// A word that only ranks of the same job know.
    pub token: String,
    /// This rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub world_size: usize,
}

/// A rank that has joined.
#[derive(Debug)]
pub struct Member {
    rank: Rank,
    world_size: usize,
    line: Arc<Line>,
    /// Ends the heartbeat when dropped.
    _heart: mpsc::Sender<()>,
}

/// The connection and what its threads share.
#[derive(Debug)]
pub(super) struct Line {
    stream: Mutex<TcpStream>,
    log: CallLog,
    watch: Arc<Watch>,
    /// What the rank waits for, and since when.
    waits: Mutex<Option<(Instant, Wait)>>,
    leaving: AtomicBool,
}

impl Member {
    /// Joins the world hosted at `address` (`host:port`) and waits for everybody else.
    ///
    /// # Collective
    /// Every rank.
    ///
    /// # Errors
    /// Nobody answers within `deadline`, or the host refuses this rank, for instance because others
    /// did not come.
    pub fn join(
        address: &str,
        credentials: &Credentials,
        deadline: Duration,
    ) -> Result<Self, RendezvousError> {
        let stream = connect(address, credentials.rank, deadline)?;
        Self::enter(stream, address, credentials, deadline)
    }

    /// Joins over a connection to `address`.
    pub(crate) fn enter(
        mut stream: TcpStream,
        address: &str,
        credentials: &Credentials,
        deadline: Duration,
    ) -> Result<Self, RendezvousError> {
        let Credentials { ref token, rank, world_size } = *credentials;
        let hello = Hello { version: VERSION, token: token.clone(), rank: rank.0, world_size };
        let start = Instant::now();
        let reply = introduce(&mut stream, &hello, deadline);
        let refused = |refusal| {
            let address = address.to_owned();
            RendezvousError::Refused { rank, address, refusal }
        };
        match reply {
            Ok(ToRank::Welcome) => Ok(Self::start(stream, rank, world_size)?),
            Ok(ToRank::Refused(refusal)) => Err(refused(refusal)),
            Ok(_) => Err(refused(Refusal::Stranger)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(refused(Refusal::Stranger))
            }
            Err(source) => {
                let (address, waited) = (address.to_owned(), start.elapsed());
                Err(RendezvousError::Unreachable { rank, address, waited, source })
            }
        }
    }

    fn start(stream: TcpStream, rank: Rank, world_size: usize) -> io::Result<Self> {
        let reading = stream.try_clone()?;
        let line = Arc::new(Line {
            stream: Mutex::new(stream),
            log: CallLog::default(),
            watch: Arc::default(),
            waits: Mutex::default(),
            leaving: AtomicBool::new(false),
        });
        let (heart, stopped) = mpsc::channel();
        let (ear, beating) = (line.clone(), line.clone());
        spawn("dmuon-control", move || ear.listen(reading))?;
        spawn("dmuon-heartbeat", move || {
            while stopped.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                beating.say(&ToHost::Beat(beating.log.progress()));
            }
        })?;
        Ok(Self { rank, world_size, line, _heart: heart })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// What this rank hears.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.line.watch
    }

    /// What this rank's other threads may tell and read without waiting.
    pub fn board(&self) -> Board {
        Board::new(self.line.clone())
    }

    /// Takes note that this rank starts a call at `place`, for others to ask about.
    pub fn note(&self, place: Place, call: &Call) {
        self.line.log.start(place, call);
    }

    /// Announces the noted call, so that the host names ranks that call something else at once.
    pub fn announce(&self, place: Place, site: CallSite, call: Call, group_size: usize) {
        self.line.say(&ToHost::Call(Started { place, site, call, group_size }));
    }

    /// Fails the world, unless it has failed before, and returns why it did.
    pub fn fail(&self, cause: Error) -> Error {
        self.line.say(&ToHost::Failed(cause.clone()));
        self.verdict_or(cause)
    }

    /// Waits until `poll` has the outcome of the call at `place`, which the group of `members`
    /// makes. Whatever makes `poll` change must notify the [`watch`](Self::watch).
    ///
    /// # Errors
    /// The world has failed, or it takes longer than `deadline`; then the world fails now, and the
    /// error names who is to blame.
    pub fn wait<T>(
        &self,
        (place, site): (Place, &CallSite),
        members: &[Rank],
        deadline: Duration,
        poll: impl FnMut() -> Option<T>,
    ) -> Result<T, Error> {
        let since = Instant::now();
        let (site, members) = (site.clone(), members.to_vec());
        let wait = Wait { place, site, members, waited: deadline };
        *self.line.waits() = Some((since, wait.clone()));
        let outcome = self.line.watch.wait(deadline, poll);
        *self.line.waits() = None;
        outcome.unwrap_or_else(|| {
            self.line.say(&ToHost::Late(wait));
            // A host that decides nothing is not there any more.
            Err(self.verdict_or(Error::RankLost { rank: Rank(0) }))
        })
    }

    /// Says that this rank starts nothing more, and waits until nobody does: as long as the others
    /// live, since they may be busy with their own code. Each time `patience` passes, a warning names
    /// those who are.
    ///
    /// # Collective
    /// Every rank.
    ///
    /// # Errors
    /// Why the world has failed meanwhile.
    pub fn finish(&self, patience: Duration) -> Result<(), Error> {
        self.line.say(&ToHost::Finished(self.line.log.progress()));
        let (start, patience) = (Instant::now(), patience.max(WARNING_PAUSE));
        loop {
            match self.line.watch.wait_for_returns(self.world_size, patience) {
                Ok(outcome) => return outcome,
                Err(busy) => {
                    let waited = start.elapsed().as_secs_f64();
                    tracing::warn!(rank = self.rank.0, ?busy, waited, "ranks have not returned");
                }
            }
        }
    }

    /// Gives every rank the `value` that one rank has: an id, an address; never data.
    ///
    /// # Collective
    /// Every rank, with the same `key`, one of them with a value.
    ///
    /// # Errors
    /// Nobody had a value within `deadline`, or the world has failed.
    pub fn share(
        &self,
        key: &str,
        value: Option<&str>,
        deadline: Duration,
    ) -> Result<String, Error> {
        if let Some(value) = value {
            self.line.say(&ToHost::Post(key.to_owned(), value.to_owned()));
        }
        self.line.watch.wait_for_post(key, deadline).unwrap_or_else(|| {
            let seconds = deadline.as_secs_f64();
            let message = format!("nobody shared \"{key}\" within {seconds} s");
            Err(self.fail(Error::message(message).seen_from_afar(self.rank)))
        })
    }

    /// Says goodbye, so that the end of the connection is not taken for a death, and waits for at
    /// most `patience` until everybody has: whoever exits early has the others killed by some
    /// launchers, before they could say what went wrong.
    pub fn leave(&self, patience: Duration) {
        self.line.leaving.store(true, Ordering::Release);
        self.line.say(&ToHost::Bye);
        // Only this direction: what is still on its way here must not be thrown back at the host.
        drop(self.line.lock().shutdown(Shutdown::Write));
        self.line.watch.wait_for_hang_up(patience);
    }

    /// The verdict; `own` where the host cannot give one.
    fn verdict_or(&self, own: Error) -> Error {
        let watch = &self.line.watch;
        watch.wait_for_failure(VERDICT_TIME).unwrap_or_else(|| {
            watch.fail(own.clone());
            watch.failure().unwrap_or(own)
        })
    }
}

impl Drop for Member {
    /// Whoever goes without having [left](Self::leave) is lost to the others.
    fn drop(&mut self) {
        if !self.line.leaving.swap(true, Ordering::AcqRel) {
            // The host may have closed the connection already.
            let _closed = self.line.lock().shutdown(Shutdown::Both);
        }
    }
}

impl Line {
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Hears the host out.
    fn listen(&self, mut stream: TcpStream) {
        while let Ok(message) = frame::read(&mut stream) {
            match message {
                ToRank::Verdict(cause) => self.watch.fail(cause),
                ToRank::Gone(rank, progress) => self.watch.returned(rank, progress),
                ToRank::Ask(place) => self.say(&ToHost::Answer(self.answer(place))),
                ToRank::Post(key, value) => self.watch.post(key, value),
                ToRank::Turn(place) => self.watch.turn(place),
                ToRank::Welcome | ToRank::Refused(_) => {}
            }
        }
        if !self.leaving.load(Ordering::Acquire) {
            self.watch.fail(Error::RankLost { rank: Rank(0) });
        }
        self.watch.hung_up();
    }

    fn answer(&self, place: Place) -> Answer {
        let waits = self.waits().clone();
        let waits = waits.map(|(since, wait)| Wait { waited: since.elapsed(), ..wait });
        Answer { place, started: self.log.look_up(place), waits }
    }

    /// Tells the host. If it is gone, the listening thread notices and fails the world.
    pub(super) fn say(&self, message: &ToHost) {
        if let Err(error) = frame::write(&mut *self.lock(), message) {
            tracing::debug!(%error, "the host does not hear");
        }
    }

    /// A wait is noted whole, so a panic elsewhere does no harm.
    fn waits(&self) -> MutexGuard<'_, Option<(Instant, Wait)>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame is written whole or the connection is broken, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, TcpStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls until somebody answers.
pub(crate) fn connect(
    address: &str,
    rank: Rank,
    deadline: Duration,
) -> Result<TcpStream, RendezvousError> {
    let start = Instant::now();
    loop {
        let source = match try_connect(address, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let waited = start.elapsed();
        if waited >= deadline {
            let address = address.to_owned();
            return Err(RendezvousError::Unreachable { rank, address, waited, source });
        }
        thread::sleep(RETRY_PAUSE);
    }
}

fn try_connect(address: &str, deadline: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        // Zero is no timeout; whoever has no time left may still find an open door.
        match TcpStream::connect_timeout(&address, deadline.max(RETRY_PAUSE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Says hello and waits for the answer; the host speaks first of those who are missing.
fn introduce(stream: &mut TcpStream, hello: &Hello, deadline: Duration) -> io::Result<ToRank> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(deadline + VERDICT_TIME))?;
    frame::write(stream, hello)?;
    let reply = frame::read(stream)?;
    stream.set_read_timeout(None)?;
    Ok(reply)
}
