//! Where CANN's libraries are looked for.

use crate::Environment;
use std::path::{Path, PathBuf};

/// Overrides where AscendCL and HCCL are looked for.
pub(super) const ACL_VARIABLE: &str = "DMUON_ACL_LIB";
pub(super) const HCCL_VARIABLE: &str = "DMUON_HCCL_LIB";

/// Variables that CANN's `set_env.sh` sets to where it is installed.
const HOMES: [&str; 2] = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"];

/// Paths to try for each of CANN's libraries, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libraries {
    pub(super) acl: Vec<PathBuf>,
    pub(super) hccl: Vec<PathBuf>,
    /// Newer versions of CANN keep communicators in a library of their own.
    pub(super) hcomm: Vec<PathBuf>,
}

impl Libraries {
    /// These libraries and no others.
    pub fn at(acl: impl Into<PathBuf>, hccl: impl Into<PathBuf>) -> Self {
        let hccl = hccl.into();
        Self { acl: vec![acl.into()], hcomm: beside(&hccl), hccl: vec![hccl] }
    }

    /// What `DMUON_ACL_LIB` and `DMUON_HCCL_LIB` say, alone; without them the loader's choice, then
    /// what is under `ASCEND_HOME_PATH` or `ASCEND_TOOLKIT_HOME`.
    pub fn read(env: &Environment<'_>) -> Self {
        let chosen = env.variable(HCCL_VARIABLE).map(PathBuf::from);
        Self {
            acl: match env.variable(ACL_VARIABLE) {
                Some(chosen) => vec![chosen.into()],
                None => found("libascendcl.so", env),
            },
            hcomm: match &chosen {
                Some(chosen) => beside(chosen),
                None => found("libhcomm.so", env),
            },
            hccl: match chosen {
                Some(chosen) => vec![chosen],
                None => found("libhccl.so", env),
            },
        }
    }
}

/// What the loader finds under the `name`, then what CANN's installation has.
fn found(name: &str, env: &Environment<'_>) -> Vec<PathBuf> {
    let homes = HOMES.iter().filter_map(|home| env.variable(home));
    let mut paths = vec![PathBuf::from(name)];
    for home in homes {
        let path = Path::new(&home).join("lib64").join(name);
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// The library of communicators in the folder of the library of collectives.
fn beside(hccl: &Path) -> Vec<PathBuf> {
    vec![hccl.with_file_name("libhcomm.so")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn read(words: &str) -> Libraries {
        let variable = |name: &str| {
            let found = words.split_whitespace().filter_map(|word| word.split_once('='));
            found.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
        };
        let no_file = |_: &Path| Err(io::Error::from(io::ErrorKind::NotFound));
        Libraries::read(&Environment::new(&variable, &no_file))
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn the_loader_is_asked_first_and_the_installation_then() {
        assert_eq!(read("").acl, paths(&["libascendcl.so"]));
        let libraries = read("ASCEND_HOME_PATH=/cann ASCEND_TOOLKIT_HOME=/toolkit");
        assert_eq!(
            libraries.hccl,
            paths(&["libhccl.so", "/cann/lib64/libhccl.so", "/toolkit/lib64/libhccl.so"])
        );
        let libraries = read("ASCEND_HOME_PATH=/cann ASCEND_TOOLKIT_HOME=/cann");
        assert_eq!(libraries.hcomm, paths(&["libhcomm.so", "/cann/lib64/libhcomm.so"]));
    }

    #[test]
    fn what_the_user_names_is_tried_alone() {
        let libraries =
            read("DMUON_ACL_LIB=/a/acl.so DMUON_HCCL_LIB=/b/hccl.so ASCEND_HOME_PATH=/cann");
        assert_eq!(libraries, Libraries::at("/a/acl.so", "/b/hccl.so"));
        assert_eq!(libraries.hccl, paths(&["/b/hccl.so"]));
        assert_eq!(libraries.hcomm, paths(&["/b/libhcomm.so"]));
    }
}
