//! What a run leaves in files: JSON, JSON lines, and one hash for all weights of a model.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::error::Error;

/// A file with one JSON object a line.
#[derive(Debug)]
pub(crate) struct JsonLines {
    file: File,
    path: PathBuf,
}

impl JsonLines {
    /// Starts an empty file, and its folder where there is none.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        create_folder_of(path)?;
        let file = File::create(path).map_err(Error::io("create", path))?;
        Ok(Self { file, path: path.into() })
    }

    /// Adds a line.
    pub(crate) fn append(&mut self, record: &impl Serialize) -> Result<(), Error> {
        let json = serde_json::to_string(record);
        let json = json.map_err(|source| Error::Json { path: self.path.clone(), source })?;
        writeln!(self.file, "{json}").map_err(Error::io("write", &self.path))
    }
}

/// Writes a value as JSON, whole or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(value);
    let json = json.map_err(|source| Error::Json { path: path.into(), source })?;
    create_folder_of(path)?;
    let draft = path.with_extension("json.tmp");
    fs::write(&draft, json + "\n").map_err(Error::io("write", &draft))?;
    fs::rename(&draft, path).map_err(Error::io("rename to", path))
}

/// SHA-256 over all weights of a whole model in the order of their names: of each the name, the
/// shape (`u64`, little-endian) and the values (`f32`, little-endian).
pub(crate) fn weights_sha256<M: Module>(model: &M) -> String {
    let mut weights = Weights::default();
    model.visit(&mut weights);
    weights.entries.sort();
    let mut hash = Sha256::new();
    for (name, bytes) in weights.entries {
        hash.update(name);
        hash.update(bytes);
    }
    hex(&hash.finalize())
}

/// Names of parameters, with shape and values as bytes.
#[derive(Debug, Default)]
struct Weights {
    path: Vec<String>,
    entries: Vec<(String, Vec<u8>)>,
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let shape = tensor.dims();
        let mut bytes: Vec<u8> = shape.iter().flat_map(|&dim| (dim as u64).to_le_bytes()).collect();
        bytes.extend(tensor.into_data().iter::<f32>().flat_map(f32::to_le_bytes));
        self.entries.push((self.path.join("."), bytes));
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn create_folder_of(path: &Path) -> Result<(), Error> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder).map_err(Error::io("create", folder)),
        None => Ok(()),
    }
}
