//! The figures, for people and for machines.

use crate::{
    contender::Contender,
    measure::{Times, cases},
};
use serde_json::{Map, Value, json};
use std::{fs, path::Path};

/// A row for each collective and size.
pub(crate) fn print(num_ranks: usize, columns: &[(Contender, Times)]) {
    println!("{num_ranks} ranks; milliseconds, medians of turns that alternate\n");
    print!("| collective | MiB |");
    columns.iter().for_each(|(contender, _)| print!(" {contender} |"));
    println!("\n|---|---:|{}", "---:|".repeat(columns.len()));
    for (case, (op, size)) in cases().enumerate() {
        print!("| {} | {size} |", op.kind());
        columns.iter().for_each(|(_, times)| print!(" {:.2} |", times.0[case]));
        println!();
    }
}

/// The same as JSON.
pub(crate) fn save(
    num_ranks: usize,
    columns: &[(Contender, Times)],
    path: &Path,
) -> Result<(), String> {
    let rows = cases().enumerate().map(|(case, (op, size))| {
        let times = columns.iter().map(|(who, times)| (who.to_string(), json!(times.0[case])));
        let times: Map<String, Value> = times.collect();
        json!({ "collective": op.kind(), "mebibytes": size, "milliseconds": times })
    });
    let record = json!({ "ranks": num_ranks, "rows": rows.collect::<Vec<_>>() });
    fs::write(path, format!("{record:#}\n")).map_err(|error| format!("{}: {error}", path.display()))
}
