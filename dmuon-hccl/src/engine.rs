//! Which engine connects this process to the others: the only one that was built, or the one chosen.

use crate::{Environment, LaunchError, LaunchSpec, Process};
use dmuon_core::EngineOptions;
use std::fmt;

/// Chooses among the engines that were built.
const VARIABLE: &str = "DMUON_ENGINE";

/// What moves data between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// Any MPI library of the standard ABI.
    #[cfg(feature = "mpi")]
    Mpi,
    /// NVIDIA's library, a GPU for each process.
    #[cfg(feature = "cuda")]
    Nccl,
    /// Huawei's library, an Ascend device for each process.
    #[cfg(feature = "hccl")]
    Hccl,
}

impl Engine {
    /// The engines of this build.
    pub const BUILT: &[Self] = &[
        #[cfg(feature = "mpi")]
        Self::Mpi,
        #[cfg(feature = "cuda")]
        Self::Nccl,
        #[cfg(feature = "hccl")]
        Self::Hccl,
    ];

    /// The engine that `DMUON_ENGINE` names (`mpi`, `nccl` or `hccl`), else the only one of this build.
    ///
    /// # Errors
    /// The variable names none of this build's engines, or there are several and it is not set.
    pub fn choose(env: &Environment<'_>) -> Result<Self, LaunchError> {
        let chosen = env.variable(VARIABLE);
        let built = || Self::BUILT.iter().map(Self::to_string).collect();
        match (&chosen, Self::BUILT) {
            (None, [only]) => Ok(*only),
            (None, _) => Err(LaunchError::SeveralEngines { built: built() }),
            (Some(name), engines) => {
                let named = engines.iter().find(|engine| engine.to_string() == name.trim());
                named.copied().ok_or_else(|| LaunchError::UnknownEngine {
                    name: name.clone(),
                    built: built(),
                })
            }
        }
    }

    /// Joins the world of all processes that the launcher started.
    ///
    /// # Collective
    /// Every process, with the same engine.
    ///
    /// # Errors
    /// The engine's own, as [`dmuon_core::Error::External`].
    pub fn join(self, spec: &LaunchSpec, options: &EngineOptions) -> dmuon_core::Result<Process> {
        match self {
            #[cfg(feature = "mpi")]
            Self::Mpi => crate::mpi::join(spec, options),
            #[cfg(feature = "cuda")]
            Self::Nccl => crate::nccl::join(spec, options),
            #[cfg(feature = "hccl")]
            Self::Hccl => crate::hccl::join(spec, options),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            #[cfg(feature = "mpi")]
            Self::Mpi => "mpi",
            #[cfg(feature = "cuda")]
            Self::Nccl => "nccl",
            #[cfg(feature = "hccl")]
            Self::Hccl => "hccl",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn choose(value: Option<&str>) -> Result<Engine, LaunchError> {
        let variable = |name: &str| value.filter(|_| name == VARIABLE).map(str::to_owned);
        let file = |_: &std::path::Path| Err(io::Error::from(io::ErrorKind::NotFound));
        Engine::choose(&Environment::new(&variable, &file))
    }

    #[test]
    fn every_engine_of_the_build_can_be_named() {
        for engine in Engine::BUILT {
            assert_eq!(choose(Some(&engine.to_string())).ok(), Some(*engine));
        }
    }

    #[test]
    fn unset_means_the_only_one() {
        match (choose(None), Engine::BUILT) {
            (Ok(engine), [only]) => assert_eq!(engine, *only),
            (Err(error), [_, _, ..]) => {
                let text = error.to_string();
                assert!(text.contains("DMUON_ENGINE"), "{text}");
                assert!(text.contains(&Engine::BUILT[0].to_string()), "{text}");
            }
            (outcome, built) => panic!("{outcome:?} of {built:?}"),
        }
    }

    #[test]
    fn engines_that_were_not_built_are_refused_by_name() {
        let text = choose(Some("gloo")).expect_err("no such engine").to_string();
        assert!(text.contains("DMUON_ENGINE=\"gloo\""), "{text}");
        assert!(text.contains("--features"), "{text}");
    }
}
