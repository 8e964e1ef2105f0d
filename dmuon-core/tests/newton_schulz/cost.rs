//! The flops the iteration counts are those the planner balances by.

use dmuon_core::newton_schulz::{Form, NewtonSchulz, NewtonSchulzConfig};
use dmuon_partition::{Form as Planned, newton_schulz_flops};

#[test]
fn the_iteration_and_the_planner_count_the_same_flops() {
    for (rows, cols) in [(512, 512), (768, 3072), (4096, 1024)] {
        for steps in 1..=5 {
            let direct = Form::Direct.flops(rows, cols, steps, 0) as f64;
            assert_eq!(direct, Planned::Direct.flops(rows, cols, steps));
            for restarts in 0..steps {
                let gram = Form::Gram.flops(rows, cols, steps, restarts) as f64;
                assert_eq!(gram, Planned::Gram { restarts }.flops(rows, cols, steps));
            }
        }
        let default = NewtonSchulz::new(NewtonSchulzConfig::new()).unwrap();
        assert_eq!(default.flops(rows, cols) as f64, newton_schulz_flops(rows, cols));
    }
}
