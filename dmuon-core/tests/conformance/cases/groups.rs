//! Groups within the world: meshes and splits.

use crate::suite::{Engine, all_succeed, assert_sum, at_all_sizes, input, run, value};
use dmuon_core::{
    Axis, Call, Element, Error, Group, Mesh, MeshShape, Op, OpKind, Rank, Result, Stream, World,
};
use std::time::Duration;

const SHAPES: [(usize, usize); 2] = [(2, 2), (2, 3)];
const STREAMS: [Stream; 2] = [Stream::Weights, Stream::Gradients];

fn mesh(world: &World) -> Result<Mesh> {
    let shape = SHAPES.into_iter().find(|(g, r)| g * r == world.size());
    let (replicate, shard) = shape.expect("run at the sizes of the shapes");
    Mesh::with_shape(world, MeshShape::new(replicate, shard)?)
}

pub(crate) fn mesh_groups_are_rows_and_columns<E: Engine>() {
    for (replicate, shard) in SHAPES {
        all_succeed::<E>(replicate * shard, |world| {
            let mesh = mesh(&world)?;
            let (at, shard) = (mesh.coordinate(), mesh.shape().shard());
            for stream in STREAMS {
                let row = mesh.group(Axis::Shard, stream);
                let expected: Vec<_> = (0..shard).map(|s| Rank(at.replicate * shard + s)).collect();
                assert_eq!((row.ranks(), row.rank()), (&expected[..], at.shard));
                let column = mesh.group(Axis::Replicate, stream);
                let expected: Vec<_> = (0..2).map(|g| Rank(g * shard + at.shard)).collect();
                assert_eq!((column.ranks(), column.rank()), (&expected[..], at.replicate));
                assert_eq!(row.name(), format!("shard/{stream}"));
                assert_eq!(column.name(), format!("replicate/{stream}"));
            }
            Ok(())
        });
    }
}

pub(crate) fn mesh_groups_reduce_apart<E: Engine>() {
    for (replicate, shard) in SHAPES {
        all_succeed::<E>(replicate * shard, |world| {
            let mesh = mesh(&world)?;
            for axis in [Axis::Shard, Axis::Replicate, Axis::Shard] {
                for stream in STREAMS {
                    sum_is_of_members(&**mesh.group(axis, stream), world.rank())?;
                }
            }
            Ok(())
        });
    }
}

fn sum_is_of_members(group: &dyn Group, own: Rank) -> Result<()> {
    let output = run(group, Op::AllReduce, 1, Some(input(own.0, 0, 1)))?;
    let output = output.expect("every rank receives");
    assert_eq!(output.as_f32().len(), 1);
    assert_sum(output.as_f32()[0], group.ranks().iter().map(|rank| value(rank.0, 0)));
    Ok(())
}

pub(crate) fn mesh_that_does_not_fit_is_refused_before_any_collective<E: Engine>() {
    all_succeed::<E>(4, |world| {
        if world.rank().0 == 0 {
            let error = Mesh::with_shape(&world, MeshShape::new(2, 3)?).expect_err("4 is not 6");
            assert!(matches!(error, Error::Mesh(_)), "{error}");
        }
        run(&*world.group(), Op::Barrier, 0, None).map(drop)
    });
}

pub(crate) fn split_orders_by_key<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (rank, size) = (world.rank().0, world.size());
        let reversed = world.group().split(0, size - rank, "reversed")?;
        let expected: Vec<_> = (0..size).rev().map(Rank).collect();
        assert_eq!((reversed.ranks(), reversed.rank()), (&expected[..], size - 1 - rank));
        sum_is_of_members(&*reversed, world.rank())
    });
}

pub(crate) fn groups_of_groups_work<E: Engine>() {
    all_succeed::<E>(8, |world| {
        let rank = world.rank().0;
        let half = world.group().split(rank / 4, rank, "half")?;
        let pair = half.split(half.rank() / 2, half.rank(), "pair")?;
        assert_eq!(pair.ranks(), [Rank(rank / 2 * 2), Rank(rank / 2 * 2 + 1)]);
        for group in [&half, &pair, &half] {
            sum_is_of_members(&**group, world.rank())?;
        }
        Ok(())
    });
}

pub(crate) fn traffic_counts_others_times_payload<E: Engine>() {
    at_all_sizes::<E>(|world| {
        let (group, own) = (world.group(), input(world.rank().0, 0, 16));
        let call = Call::new(Op::Reduce { root: 0 }, "x", Element::F32, 16).with_payload(10);
        group.start(call, Some(own))?.wait(Duration::from_secs(20))?;
        let count = world.recorder().counters().of_group("world", OpKind::Reduce);
        let sent = u64::from(world.rank().0 != 0);
        assert_eq!(
            (count.num_calls, count.payload_bytes, count.overhead_bytes),
            (1, 40 * sent, 24 * sent)
        );
        Ok(())
    });
}
