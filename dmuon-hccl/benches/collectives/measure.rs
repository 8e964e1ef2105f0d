//! What is timed: every collective at every size, from a barrier until everybody has the result.

use dmuon_core::{Buffer, Call, Element, Group, Op, Result, World};
use std::time::{Duration, Instant};

const MEBIBYTES: [usize; 3] = [1, 8, 64];
const OPS: [Op; 3] = [Op::Broadcast { root: 0 }, Op::Reduce { root: 0 }, Op::AllReduce];
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs whose median is told, after two that warm up.
const NUM_RUNS: usize = 7;
const NUM_WARM_UPS: usize = 2;

/// Milliseconds by collective and size, in the order of [`cases`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(pub(crate) Vec<f64>);

/// Every collective at every size, in MiB.
pub(crate) fn cases() -> impl Iterator<Item = (Op, usize)> {
    OPS.into_iter().flat_map(|op| MEBIBYTES.into_iter().map(move |size| (op, size)))
}

/// The cases and how often each is run, for a program in another language.
pub(crate) fn requests() -> String {
    let cases: Vec<_> = cases().map(|(op, size)| (op.kind(), size)).collect();
    let counts = (NUM_WARM_UPS, NUM_RUNS);
    serde_json::to_string(&(cases, counts)).expect("names and numbers are JSON")
}

/// This rank's times of all cases.
pub(crate) fn times(world: &World) -> Result<Times> {
    let group = world.group();
    cases().map(|(op, size)| median(&*group, op, size << 18)).collect::<Result<_>>().map(Times)
}

impl Times {
    /// Case by case.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let case = |case: usize| middle(rounds.iter().map(|round| round.0[case]).collect());
        Self((0..cases().count()).map(case).collect())
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(&self.0).expect("numbers are JSON")
    }

    /// The times in a program's output, if they are there and complete.
    pub(crate) fn from_json(text: &str) -> Option<Self> {
        let times: Vec<f64> = serde_json::from_str(text.trim().lines().last()?).ok()?;
        (times.len() == cases().count()).then_some(Self(times))
    }
}

fn median(group: &dyn Group, op: Op, num_elems: usize) -> Result<f64> {
    let input = Buffer::from_elements(&vec![1f32; num_elems]).freeze();
    let call = Call::new(op, "bench", Element::F32, num_elems);
    let mut times = Vec::new();
    for run in 0..NUM_WARM_UPS + NUM_RUNS {
        barrier(group)?;
        let own = call.input_bytes(group.rank(), group.size()).map(|_| input.clone());
        let start = Instant::now();
        drop(group.start(call.clone(), own)?.wait(PATIENCE)?);
        barrier(group)?;
        if run >= NUM_WARM_UPS {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(middle(times))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn barrier(group: &dyn Group) -> Result<()> {
    group.start(Call::barrier("align"), None)?.wait(PATIENCE).map(drop)
}
