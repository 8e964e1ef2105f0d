//! Starts this very binary under `mpiexec` as a program of several ranks, and collects what each
//! rank said, when it ended, and with which code.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// Tells a process what to do, and where to leave what it makes.
pub(crate) const SCENARIO: &str = "DMUON_TEST_SCENARIO";
pub(crate) const FOLDER: &str = "DMUON_TEST_FOLDER";

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a rank, keeping its words, its code and its end; `$PMI_RANK` is `mpiexec`'s.
///
/// In a session of its own: when a rank dies, MPICH's `mpiexec` may trip over it and take the
/// others' process groups down, and it sends USR1 to all, which no shell shall die of.
const RANK: &str = r#"trap "" USR1; exec setsid --wait sh -c '
"$@" > "$DMUON_TEST_FOLDER/said-$PMI_RANK" 2>&1
code=$?; echo $code > "$DMUON_TEST_FOLDER/code-$PMI_RANK"; exit $code' sh "$@""#;

/// How long ranks may outlive `mpiexec`.
const AFTERLIFE: Duration = Duration::from_secs(10);

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ranks: Vec<Rank>,
    /// Whether `mpiexec` was content.
    pub(crate) succeeded: bool,
    /// When a rank did what it was told to do wrong.
    pub(crate) fault_at: Option<SystemTime>,
    folder: PathBuf,
}

/// How one rank ended.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) said: String,
    pub(crate) code: Option<i32>,
    pub(crate) ended_at: Option<SystemTime>,
}

/// Runs `scenario` on `num_ranks` processes with more variables in their environment.
pub(crate) fn run(num_ranks: usize, scenario: &str, variables: &[(&str, &str)]) -> Run {
    let folder = folder();
    let mut mpiexec = Command::new(env::var_os("DMUON_MPIEXEC").unwrap_or("mpiexec".into()));
    // Survivors are to end by themselves.
    mpiexec.args(["-disable-auto-cleanup", "-n", &num_ranks.to_string(), "sh", "-c", RANK, "sh"]);
    mpiexec.arg(env::current_exe().unwrap()).args(ARGUMENTS);
    mpiexec.env(SCENARIO, scenario).env(FOLDER, &folder).envs(variables.iter().copied());
    let log = fs::File::create(folder.join("mpiexec")).unwrap();
    mpiexec.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let succeeded = wait(mpiexec.spawn().expect("mpiexec is on the path, or in DMUON_MPIEXEC"));
    wait_for_codes(&folder, num_ranks);
    let ranks = (0..num_ranks).map(|rank| Rank::read(&folder, rank)).collect();
    let fault_at = modified(&folder.join("fault"));
    Run { ranks, succeeded, fault_at, folder }
}

/// Runs `scenario` in one process, without a launcher but with variables.
pub(crate) fn run_alone(scenario: &str, variables: &[(&str, &str)]) -> Rank {
    let folder = folder();
    let mut program = Command::new(env::current_exe().unwrap());
    program.args(ARGUMENTS).env(SCENARIO, scenario).env(FOLDER, &folder);
    let output = program.envs(variables.iter().copied()).output().unwrap();
    fs::remove_dir_all(folder).unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Rank { said, code: output.status.code(), ended_at: None }
}

/// Runs only the test that is the program.
const ARGUMENTS: [&str; 5] =
    ["--exact", "program::rank_of_a_program", "--ignored", "--nocapture", "--test-threads=1"];

impl Run {
    /// A file that the program made.
    pub(crate) fn made(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !thread::panicking() {
            fs::remove_dir_all(&self.folder).unwrap();
        }
    }
}

impl Rank {
    fn read(folder: &Path, rank: usize) -> Self {
        let code_file = folder.join(format!("code-{rank}"));
        let code = fs::read_to_string(&code_file).ok();
        Self {
            said: fs::read_to_string(folder.join(format!("said-{rank}"))).unwrap_or_default(),
            code: code.and_then(|code| code.trim().parse().ok()),
            ended_at: modified(&code_file),
        }
    }
}

/// Waits for the codes of ranks that `mpiexec` did not wait for.
fn wait_for_codes(folder: &Path, num_ranks: usize) {
    let start = Instant::now();
    let ended = |rank: usize| folder.join(format!("code-{rank}")).exists();
    while !(0..num_ranks).all(ended) && start.elapsed() < AFTERLIFE {
        thread::sleep(Duration::from_millis(5));
    }
}

fn folder() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("dmuon-processes-{}-{count}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Whether the program succeeded; it is killed when it takes too long.
fn wait(mut program: Child) -> bool {
    let start = Instant::now();
    loop {
        if let Some(status) = program.try_wait().unwrap() {
            return status.success();
        }
        if start.elapsed() > LIMIT {
            program.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
}
