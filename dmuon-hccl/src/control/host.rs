//! Rank 0's side: accepts every rank once, hears what they say, and passes on what it decides.

use super::{
    docket::{Docket, Mail, To},
    error::{Refusal, RendezvousError},
    frame,
    member::Credentials,
    message::{Hello, ToHost, ToRank, VERSION},
    spawn,
};
use dmuon_core::Rank;
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Between two looks at the listener and the clock while ranks arrive, and later.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(2);
const WORKING_PAUSE: Duration = Duration::from_millis(50);

/// How long a stranger may take to introduce itself, and a rank to take a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// The host; serves in the background until dropped.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Owns the listener; taken when the host ends.
    server: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    token: String,
    world_size: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the server at the end; apart from `changed`, which every message sets off.
    closing: Condvar,
}

#[derive(Debug)]
struct State {
    docket: Docket,
    /// Connections, by rank.
    ranks: Vec<Option<TcpStream>>,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Not everybody is here.
    Arrival {
        until: Instant,
        patience: Duration,
    },
    Working,
    /// Never will everybody be here: whoever comes is told why. Nobody comes after a time.
    Dismissal {
        until: Instant,
        reason: Refusal,
    },
    Closed,
}

impl Host {
    /// Listens on `address` (`host:port`, port 0 for any) for the ranks of `credentials`' world.
    /// Ranks that are silent for longer than `deadline`, or arrive later than that, fail everybody.
    ///
    /// # Errors
    /// The address is taken or not this machine's.
    pub fn listen(
        address: &str,
        credentials: &Credentials,
        deadline: Duration,
    ) -> Result<Self, RendezvousError> {
        let failed = |source| RendezvousError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (now, size) = (Instant::now(), credentials.world_size);
        let state = State {
            docket: Docket::new(size, deadline, now),
            ranks: (0..size).map(|_| None).collect(),
            phase: Phase::Arrival { until: now + deadline, patience: deadline },
        };
        let shared = Arc::new(Shared {
            token: credentials.token.clone(),
            world_size: size,
            state: Mutex::new(state),
            changed: Condvar::new(),
            closing: Condvar::new(),
        });
        let address = listener.local_addr().map_err(failed)?;
        let serving = shared.clone();
        let server = spawn("dmuon-host", move || serving.serve(&listener))?;
        Ok(Self { address, shared, server: Some(server) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every rank has left, but not for long: those who don't are not coming back.
    pub fn linger(&self, at_most: Duration) {
        let busy = |state: &mut State| !state.docket.is_empty();
        let state = self.shared.lock();
        drop(self.shared.changed.wait_timeout_while(state, at_most, busy));
    }

    /// Where ranks have been dismissed, waits until those who are still on their way have come and
    /// heard why, within the time that they had to arrive: nobody else answers there.
    pub fn dismiss(&self) {
        let state = self.shared.lock();
        let Phase::Dismissal { until, .. } = state.phase else { return };
        let incomplete = |state: &mut State| state.ranks.iter().any(Option::is_none);
        let left = until.saturating_duration_since(Instant::now());
        drop(self.shared.changed.wait_timeout_while(state, left, incomplete));
    }
}

impl Drop for Host {
    /// Stops listening before any rank can notice that its connection ends, so that ranks which meet
    /// here again find the next host or nobody.
    fn drop(&mut self) {
        self.shared.lock().phase = Phase::Closed;
        self.shared.closing.notify_all();
        if self.server.take().is_some_and(|server| server.join().is_err()) {
            tracing::error!("the host's thread panicked");
        }
        for stream in self.shared.lock().ranks.iter().flatten() {
            // A rank that is gone has closed its side; there is nobody to tell.
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    /// Accepts connections and watches the clock.
    fn serve(self: Arc<Self>, listener: &TcpListener) {
        loop {
            while let Ok((stream, _)) = listener.accept() {
                let shared = self.clone();
                if let Err(error) = spawn("dmuon-host-rank", move || shared.attend(stream)) {
                    tracing::error!(%error, "a connection was dropped");
                }
            }
            let mut state = self.lock();
            let pause = match state.phase {
                Phase::Closed => return,
                Phase::Arrival { until, patience } if Instant::now() >= until => {
                    state.give_up(until, patience);
                    ARRIVAL_PAUSE
                }
                Phase::Arrival { .. } | Phase::Dismissal { .. } => ARRIVAL_PAUSE,
                Phase::Working => {
                    let mail = state.docket.tick(Instant::now());
                    state.deliver(mail);
                    WORKING_PAUSE
                }
            };
            drop(self.closing.wait_timeout(state, pause));
        }
    }

    /// Serves one connection until it ends.
    fn attend(&self, mut stream: TcpStream) {
        match self.admit(&mut stream) {
            Ok(rank) => self.listen_to(rank, &mut stream),
            Err(error) => tracing::warn!(%error, "a stranger called"),
        }
    }

    /// Reads who calls, and lets it in or says why not.
    fn admit(&self, stream: &mut TcpStream) -> io::Result<Rank> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let hello: Hello = frame::read(stream)?;
        let mut state = self.lock();
        if state.phase == Phase::Closed {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the host has ended"));
        }
        if let Err(refusal) = self.check(&hello, &state) {
            frame::write(stream, &ToRank::Refused(refusal.clone()))?;
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal));
        }
        stream.set_read_timeout(None)?;
        state.ranks[hello.rank] = Some(stream.try_clone()?);
        if let Phase::Dismissal { reason, .. } = &state.phase {
            self.changed.notify_all();
            frame::write(stream, &ToRank::Refused(reason.clone()))?;
        } else if state.ranks.iter().all(Option::is_some) {
            state.phase = Phase::Working;
            state.docket.all_here(Instant::now());
            state.deliver(vec![(To::Everybody, ToRank::Welcome)]);
        }
        Ok(Rank(hello.rank))
    }

    fn check(&self, hello: &Hello, state: &State) -> Result<(), Refusal> {
        let Hello { version, ref token, rank, world_size } = *hello;
        if version != VERSION {
            return Err(Refusal::Version { theirs: VERSION, ours: version });
        }
        if *token != self.token {
            return Err(Refusal::WrongToken);
        }
        if world_size != self.world_size {
            return Err(Refusal::WorldSize { theirs: self.world_size, ours: world_size });
        }
        if rank >= world_size {
            return Err(Refusal::OutOfRange { rank, world_size });
        }
        // One that went and came back is told why it is of no use.
        if state.ranks[rank].is_some() && !matches!(state.phase, Phase::Dismissal { .. }) {
            return Err(Refusal::Duplicate { rank });
        }
        Ok(())
    }

    fn listen_to(&self, rank: Rank, stream: &mut TcpStream) {
        while let Ok(message) = frame::read::<ToHost>(stream) {
            self.act(|docket| docket.hear(rank, message, Instant::now()));
        }
        self.lose(rank);
    }

    /// Takes note that a connection has ended. Before everybody is here nobody hears verdicts: the
    /// others are dismissed.
    fn lose(&self, rank: Rank) {
        let mut state = self.lock();
        match state.phase {
            Phase::Arrival { until, .. } => state.dismiss(until, Refusal::Left { rank: rank.0 }),
            Phase::Working | Phase::Closed => {
                let mail = state.docket.hang_up(rank);
                state.deliver(mail);
            }
            Phase::Dismissal { .. } => {}
        }
        self.changed.notify_all();
    }

    fn act(&self, event: impl FnOnce(&mut Docket) -> Mail) {
        let mut state = self.lock();
        let mail = event(&mut state.docket);
        state.deliver(mail);
        self.changed.notify_all();
    }

    /// State is whole at every step, so a panic elsewhere does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Sends messages. Rank 0 gets its own last: it may exit, and the host with it, as soon as it
    /// knows.
    fn deliver(&mut self, mail: Mail) {
        for (to, message) in mail {
            for (rank, stream) in self.ranks.iter_mut().enumerate().rev() {
                let Some(stream) = stream.as_mut().filter(|_| to.includes(Rank(rank))) else {
                    continue;
                };
                if let Err(error) = frame::write(stream, &message) {
                    // Its reader notices the same and reports the rank as lost.
                    tracing::debug!(rank, %error, "a message did not reach its rank");
                }
            }
        }
    }

    /// Tells those who came who did not.
    fn give_up(&mut self, until: Instant, waited: Duration) {
        let absent = |(rank, stream): (usize, &Option<TcpStream>)| stream.is_none().then_some(rank);
        let missing = self.ranks.iter().enumerate().filter_map(absent).collect();
        self.dismiss(until, Refusal::Missing { missing, waited });
    }

    /// Tells those who came, and whoever still comes, why there will be no world.
    fn dismiss(&mut self, until: Instant, reason: Refusal) {
        tracing::warn!(%reason, "the ranks that came are sent away");
        self.phase = Phase::Dismissal { until, reason: reason.clone() };
        self.deliver(vec![(To::Everybody, ToRank::Refused(reason))]);
    }
}
