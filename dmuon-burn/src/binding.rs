//! How `Hooked` modules and parameters learn their runtime while a model is traversed, and tell it.
//! Changes something during `apply` alone.

use crate::error::Error;
use crate::hooked::Boundary;
use crate::runtime::Runtime;
use burn::module::{Module, ModuleVisitor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

thread_local! {
    /// How many `Hooked` modules the traversal is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static BINDER: RefCell<Option<Binder>> = const { RefCell::new(None) };
    /// The runtime of the parameter that was visited first since somebody looked. It is not kept alive
    /// by that.
    static SHOWN: RefCell<Option<Weak<Runtime>>> = const { RefCell::new(None) };
}

struct Binder {
    runtime: Arc<Runtime>,
    /// Units met inside each `Hooked` module the traversal is inside of.
    met: Vec<BTreeSet<usize>>,
    /// The first `Hooked` module that spans several units.
    spanning: Option<BTreeSet<usize>>,
}

/// Visits the inside of a `Hooked` module.
pub(crate) fn visiting<T>(visit: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _leave = Leave;
    visit()
}

/// Whether the parameter being visited is inside a `Hooked` module.
pub(crate) fn inside_hooked() -> bool {
    DEPTH.get() > 0
}

/// Maps the inside of a `Hooked` module; returns its boundary if a model is being dedicated.
pub(crate) fn mapping<T>(map: impl FnOnce() -> T) -> (T, Option<Boundary>) {
    let active = BINDER.with_borrow_mut(|binder| {
        binder.as_mut().map(|binder| binder.met.push(BTreeSet::new())).is_some()
    });
    let mapped = map();
    if !active {
        return (mapped, None);
    }
    let bound = BINDER.with_borrow_mut(|binder| binder.as_mut().and_then(Binder::close));
    (mapped, Some(bound.unwrap_or_default()))
}

/// A parameter being visited belongs to `runtime`.
pub(crate) fn show(runtime: &Arc<Runtime>) {
    SHOWN.with_borrow_mut(|shown| {
        shown.get_or_insert_with(|| Arc::downgrade(runtime));
    });
}

/// The runtime that a model's parameters belong to; `None` for a plain model.
pub(crate) fn runtime_of<M: Module>(model: &M) -> Option<Arc<Runtime>> {
    struct Nothing;
    impl ModuleVisitor for Nothing {}
    SHOWN.set(None);
    model.visit(&mut Nothing);
    SHOWN.take()?.upgrade()
}

/// Checks that the model belongs to `runtime`.
///
/// # Errors
/// [`Error::OtherHandle`]: it was sharded since, or it is another model.
pub(crate) fn check_handle<M: Module>(runtime: &Arc<Runtime>, model: &M) -> Result<(), Error> {
    match runtime_of(model) {
        Some(of_model) if !Arc::ptr_eq(&of_model, runtime) => Err(Error::OtherHandle),
        _ => Ok(()),
    }
}

/// The runtime that a parameter being mapped belongs to from now on, if that changes.
pub(crate) fn rebound() -> Option<Arc<Runtime>> {
    BINDER.with_borrow(|binder| binder.as_ref().map(|binder| binder.runtime.clone()))
}

/// The parameter being mapped belongs to `unit`.
pub(crate) fn meet(unit: usize) {
    BINDER.with_borrow_mut(|binder| {
        if let Some(met) = binder.as_mut().and_then(|binder| binder.met.last_mut()) {
            met.insert(unit);
        }
    });
}

/// Binds every `Hooked` module that `map` traverses.
///
/// # Errors
/// The units of the first `Hooked` module that spans several.
pub(crate) fn binding<T>(
    runtime: &Arc<Runtime>,
    map: impl FnOnce() -> T,
) -> Result<T, BTreeSet<usize>> {
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            BINDER.set(None);
        }
    }
    BINDER.set(Some(Binder { runtime: runtime.clone(), met: Vec::new(), spanning: None }));
    let stop = Stop;
    let mapped = map();
    let spanning = BINDER.with_borrow_mut(|binder| binder.as_mut().and_then(|b| b.spanning.take()));
    drop(stop);
    match spanning {
        Some(units) => Err(units),
        None => Ok(mapped),
    }
}

impl Binder {
    fn close(&mut self) -> Option<Boundary> {
        let met = self.met.pop()?;
        if let Some(outer) = self.met.last_mut() {
            outer.extend(&met);
        }
        if met.len() > 1 {
            self.spanning.get_or_insert(met);
            return None;
        }
        let unit = met.into_iter().next()?;
        Some(Boundary::new(self.runtime.clone(), unit))
    }
}
