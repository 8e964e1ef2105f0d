//! What holds for every plan, whatever the model and the mesh.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use dmuon_partition::{
    Boundaries, BoundaryRule, CostModel, Matrix, MeshShape, PartitionError, Partitioner, Plan, Rank,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const WORLDS: [usize; 5] = [1, 2, 3, 4, 8];

fn mesh(replicate: usize, shard: usize) -> MeshShape {
    MeshShape::new(replicate, shard).unwrap()
}

fn meshes() -> impl Strategy<Value = MeshShape> {
    let one = proptest::sample::select(WORLDS.to_vec()).prop_map(|shard| mesh(1, shard));
    let two = (1_usize..5, 1_usize..5).prop_map(|(replicate, shard)| mesh(replicate, shard));
    prop_oneof![one, two]
}

/// Matrices of mixed shapes in layers of mixed sizes.
fn models(max: usize) -> impl Strategy<Value = Vec<Matrix>> {
    let matrix = (0_usize..6, 1_usize..4, 1_usize..200, 1_usize..200);
    proptest::collection::vec(matrix, 0..max).prop_map(|matrices| {
        let named = |(index, (layer, batch, rows, cols))| {
            Matrix::new(format!("layers.{layer}.w{index}"), rows, cols).with_batch(batch)
        };
        matrices.into_iter().enumerate().map(named).collect()
    })
}

fn plan_with(partitioner: &Partitioner, matrices: &[Matrix]) -> Plan {
    let boundaries = BoundaryRule::default().assign(matrices).unwrap();
    partitioner.plan(matrices, &boundaries).unwrap()
}

fn plan(mesh: MeshShape, matrices: &[Matrix]) -> Plan {
    plan_with(&Partitioner::new(mesh), matrices)
}

fn owners(plan: &Plan) -> Vec<Rank> {
    (0..plan.num_matrices()).map(|matrix| plan.owner(matrix)).collect()
}

fn costs(matrices: &[Matrix]) -> Vec<f64> {
    CostModel::NewtonSchulz.costs(matrices).unwrap()
}

/// The smallest largest load there is, by trying everything.
fn optimum(costs: &[f64], loads: &mut [f64]) -> f64 {
    let Some((&cost, rest)) = costs.split_first() else {
        return loads.iter().copied().fold(0.0, f64::max);
    };
    let mut best = f64::INFINITY;
    for slot in 0..loads.len() {
        loads[slot] += cost;
        best = best.min(optimum(rest, loads));
        loads[slot] -= cost;
    }
    best
}

/// Rounding of sums of a few hundred exact integers below 2⁵³: none is expected.
const ROUNDING: f64 = 1.0 + 1e-12;

proptest! {
    #[test]
    fn every_matrix_has_one_owner_and_one_pack(mesh in meshes(), matrices in models(60)) {
        let plan = plan(mesh, &matrices);
        let mut seen = BTreeSet::new();
        for rank in (0..mesh.world_size()).map(Rank) {
            for &matrix in plan.owned_by(rank) {
                prop_assert_eq!(plan.owner(matrix), rank);
                prop_assert!(seen.insert(matrix));
            }
            prop_assert!(plan.owned_by(rank).is_sorted());
        }
        prop_assert_eq!(seen.len(), matrices.len());
        let packs = plan.boundaries().iter().enumerate();
        let packed: Vec<(usize, Rank, usize)> = packs.flat_map(|(index, boundary)| {
            boundary.packs.iter().flat_map(move |pack| {
                pack.matrices.iter().map(move |&matrix| (index, pack.owner, matrix))
            })
        }).collect();
        prop_assert_eq!(packed.len(), matrices.len());
        for (boundary, owner, matrix) in packed {
            let planned = &plan.matrices()[matrix];
            prop_assert_eq!((planned.boundary, planned.owner), (boundary, owner));
            prop_assert_eq!(plan.find(&planned.matrix.name), Some(matrix));
            prop_assert_eq!(plan.boundary_of(&planned.matrix.name), Some(boundary));
        }
    }

    #[test]
    fn planning_again_gives_the_same_plan(mesh in meshes(), matrices in models(60)) {
        let (one, two) = (plan(mesh, &matrices), plan(mesh, &matrices));
        prop_assert_eq!(one.fingerprint(), two.fingerprint());
        prop_assert_eq!(one, two);
    }

    #[test]
    fn names_and_orientation_do_not_move_owners(mesh in meshes(), matrices in models(60)) {
        let renamed: Vec<Matrix> = matrices.iter().map(|matrix| Matrix {
            name: format!("model.{}.weight", matrix.name),
            rows: matrix.cols,
            cols: matrix.rows,
            ..matrix.clone()
        }).collect();
        prop_assert_eq!(owners(&plan(mesh, &matrices)), owners(&plan(mesh, &renamed)));
    }

    #[test]
    fn the_unit_of_cost_does_not_move_owners(mesh in meshes(), matrices in models(60)) {
        // A power of two scales without rounding.
        let scaled: BTreeMap<String, f64> = matrices.iter()
            .map(|matrix| (matrix.name.clone(), CostModel::NewtonSchulz.cost(matrix).unwrap() / 1024.0))
            .collect();
        let measured = Partitioner::new(mesh).with_cost(CostModel::Measured(scaled));
        prop_assert_eq!(owners(&plan(mesh, &matrices)), owners(&plan_with(&measured, &matrices)));
    }

    #[test]
    fn a_plan_survives_storage(mesh in meshes(), matrices in models(40)) {
        let plan = plan(mesh, &matrices);
        let text = serde_json::to_string(&plan).unwrap();
        let read: Plan = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read.fingerprint(), plan.fingerprint());
        prop_assert_eq!(read, plan);
    }

    #[test]
    fn the_largest_load_is_within_four_thirds_of_the_best(
        slots in 1_usize..4,
        matrices in models(8),
        slack in proptest::sample::select(vec![0.0, 0.01, 0.2]),
    ) {
        let partitioner = Partitioner::new(mesh(1, slots)).with_slack(slack);
        let report = plan_with(&partitioner, &matrices).balance(&CostModel::NewtonSchulz).unwrap();
        let best = optimum(&costs(&matrices), &mut vec![0.0; slots]);
        prop_assert!(report.max() <= (1.0 + slack) * 4.0 / 3.0 * best * ROUNDING);
    }

    #[test]
    fn the_largest_load_is_within_grahams_bound(mesh in meshes(), matrices in models(80)) {
        let report = plan(mesh, &matrices).balance(&CostModel::NewtonSchulz).unwrap();
        let largest = costs(&matrices).into_iter().fold(0.0, f64::max);
        let bound = report.mean() + largest;
        prop_assert!(report.max() <= (1.0 + Partitioner::DEFAULT_SLACK) * bound * ROUNDING);
    }

    #[test]
    fn the_model_is_never_on_one_rank(mesh in meshes(), matrices in models(80)) {
        prop_assume!(mesh.world_size() > 1 && matrices.len() > 1);
        let owners: BTreeSet<Rank> = owners(&plan(mesh, &matrices)).into_iter().collect();
        prop_assert!(owners.len() > 1);
    }

    #[test]
    fn without_packing_no_rank_idles_while_another_could_share(
        mesh in meshes(),
        matrices in models(60),
    ) {
        let partitioner = Partitioner::new(mesh).with_pack_below(0);
        let report = plan_with(&partitioner, &matrices).balance(&CostModel::NewtonSchulz).unwrap();
        prop_assert_eq!(report.idle().len(), mesh.world_size().saturating_sub(matrices.len()));
    }

    #[test]
    fn equal_matrices_of_a_boundary_go_to_different_owners(
        mesh in meshes(),
        layers in 1_usize..20,
        parts in 1_usize..9,
    ) {
        let matrices: Vec<Matrix> = (0..layers * parts)
            .map(|index| Matrix::new(format!("h.{}.w{}", index / parts, index % parts), 8, 8))
            .collect();
        let partitioner = Partitioner::new(mesh).with_pack_below(0);
        let report = plan_with(&partitioner, &matrices).balance(&CostModel::NewtonSchulz).unwrap();
        prop_assert_eq!(report.crowded_boundaries, 0);
        let most = report.ranks.iter().map(|load| load.num_matrices).max().unwrap();
        prop_assert_eq!(most, matrices.len().div_ceil(mesh.world_size()));
    }
}

#[test]
fn no_matrices_make_an_empty_plan() {
    for world_size in WORLDS {
        let plan = plan(mesh(1, world_size), &[]);
        assert_eq!(plan.num_matrices(), 0);
        assert!(plan.boundaries().is_empty());
        let report = plan.balance(&CostModel::NewtonSchulz).unwrap();
        assert_eq!(report.idle().len(), world_size);
        assert_eq!(report.max_over_mean(), 1.0);
    }
}

#[test]
fn fewer_matrices_than_ranks_get_a_rank_each() {
    let matrices = ["h.0.a", "h.0.b", "h.1.a"].map(|name| Matrix::new(name, 8, 8));
    let plan = plan(mesh(1, 8), &matrices);
    let owners: BTreeSet<Rank> = owners(&plan).into_iter().collect();
    assert_eq!(owners.len(), 3);
}

#[test]
fn free_costs_are_spread_too() {
    let matrices: Vec<Matrix> =
        (0..12).map(|index| Matrix::new(format!("h.0.w{index}"), 8, 8)).collect();
    let free = matrices.iter().map(|matrix| (matrix.name.clone(), 0.0)).collect();
    let partitioner = Partitioner::new(mesh(1, 4)).with_cost(CostModel::Measured(free));
    let plan = plan_with(&partitioner, &matrices);
    assert!((0..4).map(Rank).all(|rank| plan.owned_by(rank).len() == 3));
}

#[test]
fn spread_yields_where_it_costs_more_than_the_slack() {
    // One large matrix and five small ones in one boundary: an even three each costs 12 a rank.
    let matrices: Vec<Matrix> = (0..6)
        .map(|index| Matrix::new(format!("h.0.w{index}"), 100, if index == 0 { 1000 } else { 100 }))
        .collect();
    let loads = |slack: f64| {
        let partitioner = Partitioner::new(mesh(1, 2))
            .with_cost(CostModel::Elements)
            .with_slack(slack)
            .with_pack_below(0);
        let plan = plan_with(&partitioner, &matrices);
        [plan.owned_by(Rank(0)).len(), plan.owned_by(Rank(1)).len()]
    };
    assert_eq!(loads(0.01), [1, 5]);
    assert_eq!(loads(0.25), [3, 3]);
}

#[test]
fn replicas_share_columns_evenly() {
    let matrices: Vec<Matrix> = (0..8 * 4)
        .map(|index| Matrix::new(format!("h.{}.w{}", index / 4, index % 4), 8, 8))
        .collect();
    let plan = plan(mesh(2, 4), &matrices);
    for boundary in plan.boundaries() {
        let columns: BTreeSet<usize> =
            boundary.matrices().map(|matrix| plan.owner_coordinate(matrix).shard).collect();
        assert_eq!(columns.len(), 4, "{}", boundary.label());
    }
}

#[test]
fn parameters_that_are_no_matrices_have_a_boundary_too() {
    let matrices = ["model.layers.0.q", "model.layers.1.q"].map(|name| Matrix::new(name, 4, 4));
    let plan = plan(mesh(1, 2), &matrices);
    assert_eq!(plan.boundary_of("model.layers.1.norm.gamma"), Some(1));
    assert_eq!(plan.boundary_of("model.layers.10.norm.gamma"), None);
    assert_eq!(plan.boundary_of("model.embed.weight"), None);
}

#[test]
fn the_root_boundary_takes_what_is_left_and_has_a_label() {
    let matrices = ["h.0.q", "head"].map(|name| Matrix::new(name, 4, 4));
    let rule = BoundaryRule::default().with_strictness(dmuon_partition::Strictness::Root);
    let boundaries = rule.assign(&matrices).unwrap();
    let plan = Partitioner::new(mesh(1, 2)).plan(&matrices, &boundaries).unwrap();
    assert_eq!(plan.boundary_of("embed.weight"), Some(1));
    assert_eq!(plan.boundaries()[1].label(), "(root)");
}

#[test]
fn a_fingerprint_never_changes() {
    // Computed apart from this crate: ranks of other builds and machines must agree on it.
    const EXPECTED: u64 = 0x86c6_5084_90fa_9030;
    let stored = r#"{
        "mesh": {"replicate": 1, "shard": 2},
        "boundaries": ["h.0"],
        "matrices": [
            {"name": "h.0.q", "batch": 1, "rows": 4, "cols": 8, "boundary": 0, "owner": 1},
            {"name": "h.0.k", "batch": 3, "rows": 8, "cols": 4, "boundary": 0, "owner": 0}
        ]
    }"#;
    assert_eq!(serde_json::from_str::<Plan>(stored).unwrap().fingerprint(), EXPECTED);
}

#[test]
fn fingerprints_tell_plans_apart() {
    let matrices = ["h.0.q", "h.0.k", "h.1.q"].map(|name| Matrix::new(name, 4, 8));
    let one = plan(mesh(1, 2), &matrices);
    let mut others = vec![plan(mesh(2, 1), &matrices), plan(mesh(1, 3), &matrices)];
    for change in [
        |matrix: &mut Matrix| matrix.name.push('x'),
        |matrix: &mut Matrix| std::mem::swap(&mut matrix.rows, &mut matrix.cols),
        |matrix: &mut Matrix| matrix.batch = 2,
    ] {
        let mut changed = matrices.clone();
        change(&mut changed[1]);
        others.push(plan(mesh(1, 2), &changed));
    }
    for other in others {
        assert_ne!(other.fingerprint(), one.fingerprint(), "{other:?}");
    }
}

#[test]
fn a_name_given_twice_is_refused() {
    let matrices = ["h.0.q", "h.0.q"].map(|name| Matrix::new(name, 4, 4));
    let duplicate = PartitionError::DuplicateName { name: "h.0.q".to_owned() };
    assert_eq!(BoundaryRule::default().assign(&matrices).unwrap_err(), duplicate);
    let boundaries = Boundaries::new(vec!["h.0".to_owned()], vec![0, 0]).unwrap();
    let error = Partitioner::new(mesh(1, 2)).plan(&matrices, &boundaries).unwrap_err();
    assert_eq!(error, duplicate);
}

#[test]
fn unusable_input_is_refused() {
    let matrices = [Matrix::new("h.0.q", 4, 4)];
    let boundaries = BoundaryRule::default().assign(&matrices).unwrap();
    let partitioner = || Partitioner::new(mesh(1, 2));
    for slack in [f64::NAN, f64::INFINITY, -0.1] {
        let error = partitioner().with_slack(slack).plan(&matrices, &boundaries).unwrap_err();
        assert!(matches!(error, PartitionError::BadSlack { .. }), "{error}");
    }
    for cost in [f64::NAN, f64::INFINITY, -1.0] {
        let measured = CostModel::Measured(BTreeMap::from([("h.0.q".to_owned(), cost)]));
        let error = partitioner().with_cost(measured).plan(&matrices, &boundaries).unwrap_err();
        assert!(matches!(error, PartitionError::BadCost { .. }), "{error}");
    }
    let empty = [Matrix::new("h.0.q", 4, 0)];
    let error = partitioner().plan(&empty, &boundaries).unwrap_err();
    assert!(matches!(error, PartitionError::ZeroDim { .. }), "{error}");
    let error = partitioner().plan(&[], &boundaries).unwrap_err();
    assert_eq!(error, PartitionError::BoundaryCount { matrices: 0, indices: 1 });
}

#[test]
fn a_stored_plan_that_cannot_be_is_refused() {
    let matrices = [Matrix::new("h.0.q", 4, 4)];
    let text = serde_json::to_string(&plan(mesh(1, 2), &matrices)).unwrap();
    for (from, to, reason) in [
        ("\"owner\":0", "\"owner\":2", "does not have"),
        ("\"boundary\":0", "\"boundary\":1", "there are only 1"),
        ("\"rows\":4", "\"rows\":0", "at least 1"),
        ("\"shard\":2", "\"shard\":0", "no ranks"),
    ] {
        assert!(text.contains(from), "{text}");
        let error = serde_json::from_str::<Plan>(&text.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}
