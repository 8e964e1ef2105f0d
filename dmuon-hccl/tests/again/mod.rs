//! Worlds in processes of their own: a test that asks for one starts itself again, the same binary,
//! told to run only this test. There it gets to the same request, runs one rank or all, leaves the
//! outcomes in files, and exits.

use dmuon_core::{Error, Rank, Result};
use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio, exit},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Tells a process that it runs ranks: where to leave their outcomes, and for which request.
const FOLDER: &str = "DMUON_TEST_FOLDER";
const REQUEST: &str = "DMUON_TEST_REQUEST";

/// How long a world may take.
const LIMIT: Duration = Duration::from_secs(90);

/// Every rank's outcome. `start` says how to start the binary, given a folder for this world and
/// the binary; `ranks` runs there, and must [leave] outcomes. The calling thread must have the
/// test's name.
pub(crate) fn run(
    num_ranks: usize,
    start: impl FnOnce(&Path, &Path) -> Command,
    ranks: impl FnOnce(&Path),
) -> Vec<Result<()>> {
    match (env::var_os(FOLDER), env::var(REQUEST)) {
        (Some(folder), Ok(request)) => as_ranks(num_ranks, Path::new(&folder), &request, ranks),
        _ => as_test(num_ranks, start),
    }
}

/// Leaves what became of a rank, unless something is there already.
pub(crate) fn leave(folder: &Path, rank: Rank, outcome: &Result<()>) {
    if file(folder, rank).exists() {
        return;
    }
    let json = serde_json::to_vec(outcome).expect("outcomes are plain data");
    fs::write(file(folder, rank), json).expect("the temporary folder is writable");
}

/// Where ranks run: lets earlier requests pass, and ends the process with the one that is meant.
fn as_ranks(
    num_ranks: usize,
    folder: &Path,
    request: &str,
    ranks: impl FnOnce(&Path),
) -> Vec<Result<()>> {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    if REQUESTS.fetch_add(1, Ordering::Relaxed).to_string() != request {
        return (0..num_ranks).map(|_| Ok(())).collect();
    }
    ranks(folder);
    exit(0);
}

/// In the test: starts the ranks and reads what they left.
fn as_test(num_ranks: usize, start: impl FnOnce(&Path, &Path) -> Command) -> Vec<Result<()>> {
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
    let mut ranks = start(&folder, &program);
    ranks.args(["--exact", &test, "--include-ignored", "--nocapture"]);
    ranks.env(FOLDER, &folder).env(REQUEST, request.to_string());
    let log = fs::File::create(folder.join("log")).expect("the temporary folder is writable");
    ranks.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    let status = wait(ranks.stdin(Stdio::null()).spawn().expect("the command can be started"));
    let outcomes = (0..num_ranks).map(|rank| read(&folder, Rank(rank))).collect();
    check(status, &folder);
    fs::remove_dir_all(&folder).expect("just made");
    outcomes
}

fn wait(mut ranks: Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = ranks.try_wait().expect("a child can be waited for") {
            return status;
        }
        if start.elapsed() > LIMIT {
            ranks.kill().expect("still running");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A process that crashes may have left good outcomes before, and a thread that panics behind the
/// scenes changes none. Only the bodies of the suite's cases panic on purpose.
fn check(status: ExitStatus, folder: &Path) {
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    let is_meant = |line: &str| line.contains("tests/conformance/");
    let mut panics = log.lines().filter(|line| line.contains("panicked at"));
    assert!(panics.all(is_meant), "a thread panicked; its world said: {log}");
    assert!(status.success(), "the ranks ended with {status}; they said: {log}");
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
