//! Writes a model's weights as safetensors, under Burn's names and in Burn's layout.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use serde_json::{Map, Value, json};

/// Writes every parameter in `f32`. `Linear` weights are `[in, out]`.
pub(crate) fn write<M: Module>(model: &M, path: &Path) -> io::Result<()> {
    let mut weights = Weights::default();
    model.visit(&mut weights);
    let header = serde_json::to_vec(&weights.header)?;
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.write_all(&weights.data)?;
    file.flush()
}

#[derive(Debug, Default)]
struct Weights {
    path: Vec<String>,
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let start = self.data.len();
        let values = param.val().into_data();
        self.data.extend(values.iter::<f32>().flat_map(f32::to_le_bytes));
        let entry = json!({
            "dtype": "F32",
            "shape": param.shape().dims::<D>().as_slice(),
            "data_offsets": [start, self.data.len()],
        });
        self.header.insert(self.path.join("."), entry);
    }
}
