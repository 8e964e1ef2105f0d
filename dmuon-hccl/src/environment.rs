//! The environment a launch is read from: variables and files, injected so that tests need none.

use crate::LaunchError;
use std::{fmt, fs, io, path::Path, str::FromStr};

/// Looks up environment variables and reads files.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    file: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl Environment<'static> {
    /// The environment of this process.
    pub fn of_process() -> Self {
        Self { variable: &|name| std::env::var(name).ok(), file: &|path| fs::read_to_string(path) }
    }
}

impl<'a> Environment<'a> {
    /// An environment made of two functions.
    pub fn new(
        variable: &'a dyn Fn(&str) -> Option<String>,
        file: &'a dyn Fn(&Path) -> io::Result<String>,
    ) -> Self {
        Self { variable, file }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    pub(crate) fn read(&self, path: &Path) -> io::Result<String> {
        (self.file)(path)
    }

    /// A variable that must hold a number if it is set.
    pub(crate) fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, LaunchError> {
        let Some(value) = self.variable(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(LaunchError::NotANumber { variable: name, value }),
        }
    }
}

impl fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}
