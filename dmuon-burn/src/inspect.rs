//! Reads a model before it is dedicated: names, shapes, and what must be refused. Changes nothing.

use crate::attached::Attached;
use crate::binding;
use crate::context;
use crate::error::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param, ParamId, Reparameterization};
use burn::tensor::{Device, Tensor};
use std::collections::HashMap;

/// A float parameter as the model has it.
#[derive(Clone, Debug)]
pub struct ParameterInfo {
    /// Full name, e.g. `layers.0.attn.q_proj.weight`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Type of the module that holds it, e.g. `Struct:Linear`.
    pub module: String,
    /// Whether it requires gradients.
    pub trainable: bool,
    /// The boundary around it, if any.
    pub boundary: Option<String>,
    pub(crate) id: ParamId,
    pub(crate) device: Device,
    /// Types of the modules around that one, outermost first.
    pub(crate) within: Vec<String>,
    /// Path of the outermost `Hooked` block around it.
    pub(crate) hooked: Option<String>,
}

/// All float parameters in visit order, which is the order of everything that follows.
///
/// # Errors
/// A reparameterized parameter (ours or another's), a name given twice, or clones of one parameter in two fields.
pub(crate) fn inspect<M: Module>(model: &M) -> Result<Vec<ParameterInfo>> {
    let mut inspector = Inspector::default();
    model.visit(&mut inspector);
    if let Some((parameter, kind)) = inspector.reparameterized {
        return Err(match kind == Attached::NAME {
            true => Error::AlreadyDistributed { parameter },
            false => Error::Reparameterized { parameter, kind },
        });
    }
    let mut by_name = HashMap::new();
    let mut by_id = HashMap::new();
    for parameter in &inspector.found {
        if let Some(first) = by_id.insert(parameter.id, &parameter.name) {
            let (first, second) = (first.clone(), parameter.name.clone());
            return Err(Error::SharedParameter { first, second });
        }
        if by_name.insert(&parameter.name, ()).is_some() {
            return Err(Error::DuplicateName { parameter: parameter.name.clone() });
        }
    }
    Ok(inspector.found)
}

/// Notes where the model's parameters are now.
pub(crate) fn locate<M: Module>(found: &mut [ParameterInfo], model: &M) {
    struct Locate<'a>(&'a mut [ParameterInfo]);
    impl ModuleVisitor for Locate<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(info) = self.0.iter_mut().find(|info| info.id == param.id) {
                info.device = param.lazy_device();
            }
        }
    }
    model.visit(&mut Locate(found));
}

#[derive(Default)]
struct Inspector {
    path: Vec<String>,
    modules: Vec<String>,
    found: Vec<ParameterInfo>,
    /// Path of the `Hooked` block that the visitor is in.
    hooked: Option<String>,
    /// Parameter and kind of the first reparameterization met.
    reparameterized: Option<(String, String)>,
}

/// What Burn announces a reparameterization's own parameters as.
const REPARAMETERIZATION: &str = "Reparameterization";

impl ModuleVisitor for Inspector {
    fn enter_module(&mut self, name: &str, container: &str) {
        if container == REPARAMETERIZATION && self.reparameterized.is_none() {
            self.reparameterized = Some((self.path.join("."), name.to_owned()));
        }
        // A `Hooked` block announces itself only by what is visited next being inside of it.
        if !binding::inside_hooked() {
            self.hooked = None;
        } else if self.hooked.is_none() {
            self.hooked = Some(self.path.join("."));
        }
        self.path.push(name.to_owned());
        self.modules.push(container.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
        self.modules.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.modules.iter().any(|module| module == REPARAMETERIZATION) {
            return;
        }
        let base = context::known(param);
        self.found.push(ParameterInfo {
            name: self.path.join("."),
            shape: base.shape().to_vec(),
            module: self.modules.last().cloned().unwrap_or_default(),
            within: self.modules.iter().rev().skip(1).rev().cloned().collect(),
            trainable: base.is_require_grad(),
            boundary: None,
            id: param.id,
            device: base.device(),
            hooked: self.hooked.clone().filter(|_| binding::inside_hooked()),
        });
    }
}
