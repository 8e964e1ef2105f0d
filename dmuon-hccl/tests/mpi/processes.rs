//! Runs one body on every rank of a world of processes.
//!
//! A test that asks for a world starts itself again under `mpiexec`: the same binary, told to run
//! only this test. There it gets to the same request, joins the world, runs the body as one rank,
//! leaves its outcome in a file, and exits. So every world has processes of its own, which may die.

use dmuon_core::{EngineOptions, Error, Rank, Result, World, run_rank};
use dmuon_hccl::{Environment, Launch, mpi, read_launch};
use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio, exit},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Tells a process that it is a rank: where to leave its outcome, and for which request.
const FOLDER: &str = "DMUON_TEST_FOLDER";
const REQUEST: &str = "DMUON_TEST_REQUEST";

/// How long a world may take.
const LIMIT: Duration = Duration::from_secs(90);

/// Every rank's outcome. The calling thread must have the test's name.
pub(crate) fn run(
    num_ranks: usize,
    options: &EngineOptions,
    body: fn(World) -> Result<()>,
) -> Vec<Result<()>> {
    match (env::var_os(FOLDER), env::var(REQUEST)) {
        (Some(folder), Ok(request)) => {
            as_rank(num_ranks, Path::new(&folder), &request, options, body)
        }
        _ => as_test(num_ranks),
    }
}

/// In a rank: lets earlier requests pass, and ends the process with the one that is meant.
fn as_rank(
    num_ranks: usize,
    folder: &Path,
    request: &str,
    options: &EngineOptions,
    body: fn(World) -> Result<()>,
) -> Vec<Result<()>> {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    if REQUESTS.fetch_add(1, Ordering::Relaxed).to_string() != request {
        return (0..num_ranks).map(|_| Ok(())).collect();
    }
    let spec = match read_launch(None, &Environment::of_process()) {
        Ok(Launch::Process(spec)) => spec,
        other => panic!("not started by mpiexec: {other:?}"),
    };
    let outcome = mpi::join(&spec, options).and_then(|process| {
        let outcome = run_rank(&process, body);
        leave(folder, spec.rank, &outcome);
        process.leave()
    });
    // What failed is in the file already, unless joining did.
    if !file(folder, spec.rank).exists() {
        leave(folder, spec.rank, &outcome);
    }
    exit(0);
}

/// In the test: starts the ranks and reads what they left.
fn as_test(num_ranks: usize) -> Vec<Result<()>> {
    static REQUESTS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);
    let test = thread::current().name().unwrap_or_default().to_owned();
    assert!(test.contains("::"), "run without --test-threads=1: threads must have tests' names");
    let mut requests = REQUESTS.lock().expect("nothing panics with it");
    let count = requests.get_or_insert_default().entry(test.clone()).or_default();
    let request = *count;
    *count += 1;
    drop(requests);
    let name = format!("dmuon-{}-{}-{request}", std::process::id(), test.replace("::", "-"));
    let folder = env::temp_dir().join(name);
    fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let program = env::current_exe().expect("a test knows its binary");
    let mut ranks = mpiexec(num_ranks);
    ranks.arg(program).args(["--exact", &test, "--include-ignored", "--nocapture"]);
    ranks.env(FOLDER, &folder).env(REQUEST, request.to_string());
    let log = fs::File::create(folder.join("log")).expect("the temporary folder is writable");
    ranks.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    wait(ranks.stdin(Stdio::null()).spawn().expect("mpiexec is on the path"));
    let outcomes = (0..num_ranks).map(|rank| read(&folder, Rank(rank))).collect();
    fs::remove_dir_all(&folder).expect("just made");
    outcomes
}

/// `mpiexec`, told to leave survivors alone.
fn mpiexec(num_ranks: usize) -> Command {
    let mut command = Command::new(env::var_os("DMUON_MPIEXEC").unwrap_or("mpiexec".into()));
    command.args(["-disable-auto-cleanup", "-n", &num_ranks.to_string()]);
    command
}

fn wait(mut ranks: Child) {
    let start = Instant::now();
    while ranks.try_wait().expect("a child can be waited for").is_none() {
        if start.elapsed() > LIMIT {
            ranks.kill().expect("still running");
            ranks.wait().expect("a child can be waited for");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn leave(folder: &Path, rank: Rank, outcome: &Result<()>) {
    let json = serde_json::to_vec(outcome).expect("outcomes are plain data");
    fs::write(file(folder, rank), json).expect("the temporary folder is writable");
}

fn read(folder: &Path, rank: Rank) -> Result<()> {
    let Ok(json) = fs::read(file(folder, rank)) else {
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        return Err(Error::message(format!("rank {rank} left no outcome; its world said: {log}")));
    };
    serde_json::from_slice(&json).expect("outcomes are plain data")
}

fn file(folder: &Path, rank: Rank) -> PathBuf {
    folder.join(format!("rank-{rank}.json"))
}
