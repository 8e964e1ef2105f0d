//! Real text as bytes: finds it, splits it and cuts batches that depend on seed and step alone.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use sha2::{Digest, Sha256};

use super::error::Error;
use super::model::VOCABULARY;
use super::random::Random;
use super::records::hex;

/// The sources that cargo had to download to build these examples: the default text, some 6 MB.
const CRATES: [&str; 7] =
    ["petgraph", "rayon", "clap_builder", "burn-flex", "burn-backend", "burn-nn", "burn-tensor"];

/// One byte in so many is held out for validation.
const HELD_OUT: usize = 20;

/// How many sequences the text must hold, and the held-out part at least one.
const MIN_SEQUENCES: usize = 2 * HELD_OUT;

/// The text to learn, and the text to be judged by.
#[derive(Debug)]
pub(crate) struct Corpus {
    /// What was read, for people.
    pub(crate) source: String,
    /// SHA-256 of all bytes, in hexadecimal.
    pub(crate) sha256: String,
    pub(crate) train: Vec<u8>,
    pub(crate) valid: Vec<u8>,
}

/// Sequences and, for each of their bytes, the byte that follows.
#[derive(Debug)]
pub(crate) struct Batch {
    /// `[sequences, seq_len]`, as `targets`.
    pub(crate) inputs: Tensor<2, Int>,
    pub(crate) targets: Tensor<2, Int>,
}

impl Corpus {
    /// Reads `path` (a file, or all files of a folder), or by default Rust sources found here.
    pub(crate) fn load(path: Option<&Path>, seq_len: usize) -> Result<Self, Error> {
        let (source, bytes) = match path {
            Some(path) => read_path(path)?,
            None => read_sources()?,
        };
        let needed = MIN_SEQUENCES * (seq_len + 1);
        if bytes.len() < needed {
            let (found, sequences) = (bytes.len(), MIN_SEQUENCES);
            return Err(Error::DataTooShort {
                source_name: source,
                found,
                needed,
                sequences,
                seq_len,
            });
        }
        let sha256 = hex(&Sha256::digest(&bytes));
        let mut train = bytes;
        let valid = train.split_off(train.len() - train.len() / HELD_OUT);
        Ok(Self { source, sha256, train, valid })
    }

    /// Training sequences `first..first + count` of a step: a pure function of seed, step and
    /// sequence, so that N ranks with b sequences each read what one process with N·b reads.
    pub(crate) fn batch(&self, seed: u64, step: usize, sequences: Sequences) -> Vec<&[u8]> {
        let starts = self.train.len() - sequences.seq_len;
        let start = |i: usize| Random::new(&[seed, step as u64, i as u64]).below(starts);
        (sequences.first..sequences.first + sequences.count)
            .map(start)
            .map(|start| &self.train[start..=start + sequences.seq_len])
            .collect()
    }

    /// At most `count` sequences, evenly spread over the held-out text: always the same.
    pub(crate) fn validation(&self, count: usize, seq_len: usize) -> Vec<&[u8]> {
        let count = count.min(self.valid.len() / (seq_len + 1));
        let stride = self.valid.len() / count;
        (0..count).map(|i| &self.valid[i * stride..=i * stride + seq_len]).collect()
    }

    /// Nats a byte, on the held-out text, of guessing by how frequent each byte is in the training
    /// text: what a model that reads no context can reach.
    pub(crate) fn unigram_baseline(&self) -> f64 {
        let mut count = [1.0; VOCABULARY];
        self.train.iter().for_each(|&byte| count[usize::from(byte)] += 1.0);
        let total: f64 = count.iter().sum();
        let nats = |&byte: &u8| -(count[usize::from(byte)] / total).ln();
        self.valid.iter().map(nats).sum::<f64>() / self.valid.len() as f64
    }
}

/// Which sequences of a step's global batch, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequences {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) seq_len: usize,
}

impl Sequences {
    /// The share of one rank.
    pub(crate) fn of_rank(rank: usize, count: usize, seq_len: usize) -> Self {
        Self { first: rank * count, count, seq_len }
    }
}

impl Batch {
    /// From sequences of equal length, one byte longer than the model reads.
    pub(crate) fn new(sequences: &[&[u8]], device: &Device) -> Self {
        let seq_len = sequences[0].len() - 1;
        let tensor = |offset: usize| {
            let bytes = sequences.iter().flat_map(|s| &s[offset..offset + seq_len]);
            let tokens: Vec<i32> = bytes.map(|&byte| byte.into()).collect();
            Tensor::from_data(TensorData::new(tokens, [sequences.len(), seq_len]), device)
        };
        Self { inputs: tensor(0), targets: tensor(1) }
    }
}

/// The default text: sources of [`CRATES`] or, where cargo keeps none, of this repository.
fn read_sources() -> Result<(String, Vec<u8>), Error> {
    match CRATES.iter().map(|name| crate_folder(name)).collect::<Option<Vec<_>>>() {
        Some(folders) => {
            let bytes = read_folders(&folders, "rs")?;
            Ok((format!("Rust sources of {} in cargo's registry", CRATES.join(", ")), bytes))
        }
        None => {
            let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
            let source = "Rust sources of this repository \
                          (cargo's registry holds no sources of the crates in the lock file)";
            Ok((source.into(), read_folders(&[own], "rs")?))
        }
    }
}

/// Where cargo unpacked the crate, in the version that the lock file names.
fn crate_folder(name: &str) -> Option<PathBuf> {
    let folder = format!("{name}-{}", locked_version(name)?);
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")))?;
    let mut registries: Vec<_> =
        fs::read_dir(home.join("registry/src")).ok()?.flatten().map(|e| e.path()).collect();
    registries.sort();
    registries.into_iter().map(|registry| registry.join(&folder)).find(|path| path.is_dir())
}

fn locked_version(name: &str) -> Option<&'static str> {
    let lock = include_str!("../../Cargo.lock");
    let (_, entry) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    entry.split('"').next()
}

fn read_path(path: &Path) -> Result<(String, Vec<u8>), Error> {
    if path.is_dir() {
        let bytes = read_folders(&[path.to_path_buf()], "")?;
        return Ok((format!("all files under {}", path.display()), bytes));
    }
    if !path.exists() {
        return Err(Error::DataMissing { path: path.to_path_buf() });
    }
    Ok((path.display().to_string(), fs::read(path).map_err(Error::io("read", path))?))
}

/// All files under each folder whose names end in `.extension` (any, if empty), in order of their
/// relative paths: the same bytes on every machine.
fn read_folders(folders: &[PathBuf], extension: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    for folder in folders {
        let mut files = Vec::new();
        list_files(folder, &mut files)?;
        files.retain(|file| {
            extension.is_empty() || file.extension().is_some_and(|e| e == extension)
        });
        files.sort();
        for file in files {
            bytes.extend(fs::read(&file).map_err(Error::io("read", &file))?);
        }
    }
    Ok(bytes)
}

/// Skips hidden files and cargo's `target`; does not follow links.
fn list_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let entry = entry.map_err(Error::io("read", folder))?;
        let kind = entry.file_type().map_err(Error::io("read", folder))?;
        let name = entry.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if kind.is_dir() && !hidden && name != "target" {
            list_files(&entry.path(), files)?;
        } else if kind.is_file() && !hidden {
            files.push(entry.path());
        }
    }
    Ok(())
}
