//! What may be chosen about an engine, and the environment variables that stand in for a choice.

use crate::{Error, Result};
use std::{path::PathBuf, sync::OnceLock, time::Duration};

/// How long a wait may take unless told otherwise.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(300);

/// Events a rank's flight recorder keeps unless told otherwise.
const DEFAULT_RECORDER_CAPACITY: usize = 4096;

/// Options of an engine. Sharing and the link apply to ranks as threads, verification to ranks as
/// processes.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Whether ranks share memory or each gets its own.
    pub sharing: Sharing,
    /// How long a wait may take; `None` reads `DMUON_TIMEOUT` (seconds), else five minutes.
    pub deadline: Option<Duration>,
    /// Events each rank's flight recorder keeps.
    pub recorder_capacity: usize,
    /// What to do with the flight recordings when a launch fails.
    pub dump: Dump,
    /// The link every group pretends to have; `None` for memory speed.
    pub link: Option<Link>,
    /// Whether calls are compared between processes before they run. Threads always compare.
    pub verify: Verify,
    /// Who runs the collectives of an engine with a library behind it.
    pub collectives: Collectives,
}

/// Whether ranks in one process share memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// A broadcast hands every rank the root's own memory.
    #[default]
    Share,
    /// Every rank receives into memory of its own, as separate machines would, so that counted
    /// allocations are honest.
    Copy,
}

/// Whether every call is announced to rank 0, which names ranks whose calls differ at once.
///
/// Without it, a call that differs is found when a wait reaches its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// As `DMUON_VERIFY` says (0 or 1); without that, in builds with debug assertions.
    #[default]
    FromEnvironment,
    /// Every call.
    Always,
    /// No call.
    Never,
}

/// Who runs the collectives of an engine that has a library behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Collectives {
    /// As `DMUON_COLLECTIVES` says (`ordered` or `library`); without that, ordered.
    #[default]
    FromEnvironment,
    /// dmuon, over the library's messages: sums in the canonical order, so that results are those
    /// of ranks as threads, bit for bit.
    Ordered,
    /// The library: sums in whatever order it likes, equal to rounding only.
    Library,
}

/// What happens to the flight recordings when a launch fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dump {
    /// To the directory in `DMUON_FLIGHT_RECORDER`, or nothing without that.
    #[default]
    FromEnvironment,
    /// Nothing.
    Never,
    /// To a directory, made if need be.
    To(PathBuf),
}

/// A pretended link: one per group, busy with one collective at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Time before the first byte.
    pub latency: Duration,
    /// Bytes of a call's part per second.
    pub bytes_per_second: f64,
    /// The groups that have it: those whose name begins so, such as `replicate/`; empty for all.
    pub groups: &'static str,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            sharing: Sharing::Share,
            deadline: None,
            recorder_capacity: DEFAULT_RECORDER_CAPACITY,
            dump: Dump::FromEnvironment,
            link: None,
            verify: Verify::FromEnvironment,
            collectives: Collectives::FromEnvironment,
        }
    }
}

impl EngineOptions {
    /// Options with a deadline for every wait.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Options with a way of sharing.
    #[must_use]
    pub fn with_sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Options with a pretended link.
    #[must_use]
    pub fn with_link(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// Options with a place for flight recordings.
    #[must_use]
    pub fn with_dump(mut self, dump: Dump) -> Self {
        self.dump = dump;
        self
    }

    /// Options with a choice about verification.
    #[must_use]
    pub fn with_verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Options with a choice of who runs the collectives.
    #[must_use]
    pub fn with_collectives(mut self, collectives: Collectives) -> Self {
        self.collectives = collectives;
        self
    }

    /// The deadline after asking the environment, which is read once per process.
    ///
    /// # Errors
    /// `DMUON_TIMEOUT` is no positive number of seconds.
    pub fn resolved_deadline(&self) -> Result<Duration> {
        static TIMEOUT: OnceLock<Result<Option<Duration>>> = OnceLock::new();
        if let Some(deadline) = self.deadline {
            return Ok(deadline);
        }
        let timeout = TIMEOUT.get_or_init(|| match std::env::var("DMUON_TIMEOUT") {
            Ok(value) => parse_timeout(&value).map(Some),
            Err(_) => Ok(None),
        });
        Ok(timeout.clone()?.unwrap_or(DEFAULT_DEADLINE))
    }

    /// Where to dump flight recordings, if anywhere.
    pub fn resolved_dump(&self) -> Option<PathBuf> {
        match &self.dump {
            Dump::Never => None,
            Dump::To(directory) => Some(directory.clone()),
            Dump::FromEnvironment => std::env::var_os("DMUON_FLIGHT_RECORDER").map(PathBuf::from),
        }
    }

    /// Whether to verify, after asking the environment.
    ///
    /// # Errors
    /// `DMUON_VERIFY` is neither 0 nor 1.
    pub fn resolved_verify(&self) -> Result<bool> {
        match self.verify {
            Verify::Always => Ok(true),
            Verify::Never => Ok(false),
            Verify::FromEnvironment => match std::env::var("DMUON_VERIFY") {
                Ok(value) => parse_switch(&value),
                Err(_) => Ok(cfg!(debug_assertions)),
            },
        }
    }

    /// Who runs the collectives, after asking the environment: never
    /// [`Collectives::FromEnvironment`].
    ///
    /// # Errors
    /// `DMUON_COLLECTIVES` is neither `ordered` nor `library`.
    pub fn resolved_collectives(&self) -> Result<Collectives> {
        match (self.collectives, std::env::var("DMUON_COLLECTIVES")) {
            (Collectives::FromEnvironment, Ok(value)) => parse_collectives(&value),
            (Collectives::FromEnvironment, Err(_)) => Ok(Collectives::Ordered),
            (chosen, _) => Ok(chosen),
        }
    }
}

impl Link {
    /// How long `bytes` take.
    pub(crate) fn transfer_time(&self, bytes: usize) -> Duration {
        self.latency + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }
}

fn parse_timeout(value: &str) -> Result<Duration> {
    let seconds = value.trim().parse::<f64>().ok().filter(|seconds| *seconds > 0.0);
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        Error::Environment {
            variable: "DMUON_TIMEOUT",
            value: value.into(),
            expected: "a positive number of seconds",
        }
    })
}

fn parse_switch(value: &str) -> Result<bool> {
    match value.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Error::Environment {
            variable: "DMUON_VERIFY",
            value: value.into(),
            expected: "0 or 1",
        }),
    }
}

fn parse_collectives(value: &str) -> Result<Collectives> {
    match value.trim() {
        "ordered" => Ok(Collectives::Ordered),
        "library" => Ok(Collectives::Library),
        _ => Err(Error::Environment {
            variable: "DMUON_COLLECTIVES",
            value: value.into(),
            expected: "`ordered` or `library`",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_zero_or_one() {
        assert_eq!((parse_switch("0").ok(), parse_switch(" 1").ok()), (Some(false), Some(true)));
        let error = parse_switch("yes").expect_err("not a switch").to_string();
        assert_eq!(error, "DMUON_VERIFY=\"yes\" is not 0 or 1; correct it or unset it");
    }

    #[test]
    fn timeouts_are_positive_seconds() {
        assert_eq!(parse_timeout("30").ok(), Some(Duration::from_secs(30)));
        assert_eq!(parse_timeout(" 0.5 ").ok(), Some(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "inf", "NaN", "5m", "1e300"] {
            let error = parse_timeout(wrong).expect_err("not a timeout").to_string();
            assert!(error.contains("DMUON_TIMEOUT"), "{error}");
            assert!(error.contains("positive number of seconds"), "{error}");
        }
    }
}
