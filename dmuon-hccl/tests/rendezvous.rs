//! Meeting without MPI: who gets in, who is turned away, and who is told when somebody dies.

use dmuon_core::{Error, Rank};
use dmuon_hccl::{
    Environment, Launch, Rendezvous,
    control::{Board, Credentials, GroupId, Host, Member, Place, RendezvousError},
    read_launch,
};
use std::{
    env, fs, io,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process, thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn credentials(rank: usize, world_size: usize) -> Credentials {
    Credentials { token: "job 7".into(), rank: Rank(rank), world_size }
}

fn host(world_size: usize, deadline: Duration) -> (Host, String) {
    let host = Host::listen("127.0.0.1:0", &credentials(0, world_size), deadline);
    let host = host.expect("any port will do");
    let address = host.address().to_string();
    (host, address)
}

/// Every rank's attempt to join a host at `address`.
fn join_all(address: &str, all: &[Credentials]) -> Vec<Result<Member, RendezvousError>> {
    thread::scope(|scope| {
        let join = |own| scope.spawn(move || Member::join(address, own, PATIENCE));
        let ranks: Vec<_> = all.iter().map(join).collect();
        ranks.into_iter().map(|rank| rank.join().expect("joining does not panic")).collect()
    })
}

fn world(num_ranks: usize, deadline: Duration) -> (Host, Vec<Member>) {
    let (host, address) = host(num_ranks, deadline);
    let all: Vec<_> = (0..num_ranks).map(|rank| credentials(rank, num_ranks)).collect();
    let members = join_all(&address, &all).into_iter().map(|member| member.expect("expected"));
    (host, members.collect())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it listens").port()
}

fn file(name: &str) -> PathBuf {
    env::temp_dir().join(format!("dmuon-rendezvous-{}-{name}", process::id()))
}

/// Every rank meets at `place`; returns the id that rank 1 gave to all.
fn shared_ids(place: &Rendezvous) -> Vec<String> {
    let rank_main = |rank| {
        let (member, host) = place.meet(&credentials(rank, 3), PATIENCE).expect("all are here");
        let id = (rank == 1).then_some("the id of rank 1");
        let id = member.share("nccl", id, PATIENCE).expect("rank 1 has it");
        member.finish(PATIENCE).expect("nobody fails");
        member.leave(PATIENCE.mul_f32(f32::from(host.is_none())));
        host.inspect(|host| host.linger(PATIENCE));
        id
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || rank_main(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

#[test]
fn ranks_meet_at_an_address_and_share_an_id() {
    let place = Rendezvous::Address { host: "127.0.0.1".into(), port: free_port() };
    assert_eq!(shared_ids(&place), ["the id of rank 1"; 3]);
}

#[test]
fn ranks_meet_again_at_the_same_address_at_once() {
    let place = Rendezvous::Address { host: "127.0.0.1".into(), port: free_port() };
    for _ in 0..5 {
        assert_eq!(shared_ids(&place), ["the id of rank 1"; 3]);
    }
}

#[test]
fn ranks_meet_at_a_file_although_an_old_one_is_there() {
    let path = file("old");
    let listing = format!(r#"{{"machine": "127.0.0.1", "port": {}}}"#, free_port());
    fs::write(&path, listing).expect("the temporary folder is writable");
    assert_eq!(shared_ids(&Rendezvous::File { path: path.clone() }), ["the id of rank 1"; 3]);
    assert!(!path.exists(), "the next job must not find it");
}

#[test]
fn a_file_that_nobody_writes_is_named() {
    let place = Rendezvous::File { path: file("none") };
    let error = place.meet(&credentials(1, 2), SHORT).expect_err("rank 0 does not come");
    let text = error.to_string();
    assert!(text.contains("rank 1 cannot read") && text.contains("-none"), "{text}");
}

#[test]
fn a_port_in_use_is_named_with_the_cure() {
    let taken = TcpListener::bind("0.0.0.0:0").expect("there is a free port");
    let port = taken.local_addr().expect("it listens").port();
    let place = Rendezvous::Address { host: "127.0.0.1".into(), port };
    let text = place.meet(&credentials(0, 2), SHORT).expect_err("it is taken").to_string();
    assert!(text.contains(&format!("0.0.0.0:{port}")), "{text}");
    assert!(text.contains("in use") && text.contains("another MASTER_PORT"), "{text}");
}

#[test]
fn nobody_at_the_address_is_named_with_the_cure() {
    let address = format!("127.0.0.1:{}", free_port());
    let error = Member::join(&address, &credentials(1, 2), SHORT).expect_err("nobody listens");
    let text = error.to_string();
    assert!(text.contains(&address) && text.contains("is rank 0 running"), "{text}");
}

#[test]
fn whoever_is_not_dmuon_is_called_a_stranger() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it listens").to_string();
    let server = thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; 4])?;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    });
    let error = Member::join(&address, &credentials(1, 2), PATIENCE).expect_err("not dmuon");
    assert!(error.to_string().contains("is not dmuon"), "{error}");
    server.join().expect("no panic").expect("the caller spoke first");
}

#[test]
fn impostors_are_refused_and_the_others_still_meet() {
    let (_host, address) = host(2, PATIENCE);
    let wrong_token = Credentials { token: "job 8".into(), ..credentials(1, 2) };
    for (impostor, part) in [
        (wrong_token, "the job tokens differ"),
        (credentials(1, 3), "it expects 2 ranks, this rank was told 3"),
        (credentials(2, 2), "there is no rank 2 among 2"),
    ] {
        let error = Member::join(&address, &impostor, PATIENCE).expect_err(part);
        assert!(error.to_string().contains(part), "{error} lacks {part}");
    }
    let both = [credentials(0, 2), credentials(1, 2)];
    assert!(join_all(&address, &both).iter().all(Result::is_ok));
}

#[test]
fn a_rank_that_comes_twice_is_refused() {
    let (_host, address) = host(2, PATIENCE);
    let outcomes = join_all(&address, &[credentials(1, 2), credentials(1, 2), credentials(0, 2)]);
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].to_string().contains("rank 1 is there already"), "{}", errors[0]);
}

#[test]
fn those_who_come_are_told_who_does_not() {
    let (_host, address) = host(4, SHORT);
    for outcome in join_all(&address, &[credentials(0, 4), credentials(2, 4)]) {
        let text = outcome.expect_err("two are missing").to_string();
        assert!(text.contains("not arrived within 0.3 s: ranks [1, 3]"), "{text}");
    }
}

#[test]
fn a_rank_that_goes_early_is_named_to_all_others_also_to_those_who_come_later() {
    let port = free_port();
    let place = Rendezvous::Address { host: "127.0.0.1".into(), port };
    let start = Instant::now();
    let told = thread::scope(|scope| {
        let ranks = [0, 2].map(|rank| {
            let place = &place;
            scope.spawn(move || place.meet(&credentials(rank, 4), PATIENCE).map(drop))
        });
        let address = format!("127.0.0.1:{port}");
        assert!(happens(|| TcpStream::connect(&address).is_ok()));
        let impatient = Member::join(&address, &credentials(1, 4), Duration::ZERO).map(drop);
        assert!(impatient.is_err(), "the others are not all here");
        // Rank 2 knows, and rank 0 stays for rank 3.
        let [zero, two] = ranks;
        let two = two.join().expect("joining does not panic");
        assert!(!zero.is_finished(), "rank 3 has not heard it yet");
        let three = place.meet(&credentials(3, 4), PATIENCE).map(drop);
        [zero.join().expect("joining does not panic"), two, three]
    });
    for outcome in told {
        let text = outcome.expect_err("rank 1 went").to_string();
        assert!(text.contains("rank 1 went before everybody had arrived"), "{text}");
    }
    assert!(start.elapsed() < PATIENCE / 2, "nobody waits for the deadline");
}

#[test]
fn a_rank_that_dies_is_named_to_all_others() {
    let (_host, mut members) = world(3, PATIENCE);
    drop(members.remove(1));
    for member in &members {
        let start = Instant::now();
        let error = member.share("never", None, PATIENCE).expect_err("rank 1 is dead");
        assert!(matches!(error, Error::RankLost { rank: Rank(1) }), "{error}");
        assert!(start.elapsed() < PATIENCE / 2, "the connection tells, not the deadline");
    }
}

#[test]
fn the_host_dying_is_told_too() {
    let (host, members) = world(2, PATIENCE);
    drop(host);
    let error = members[1].share("never", None, PATIENCE).expect_err("rank 0 is dead");
    assert!(matches!(error, Error::RankLost { rank: Rank(0) }), "{error}");
}

#[test]
fn an_id_that_nobody_has_is_named_within_the_deadline() {
    let (_host, members) = world(2, PATIENCE);
    let error = members[0].share("nccl", None, SHORT).expect_err("nobody has it");
    assert!(error.to_string().contains("nobody shared \"nccl\" within 0.3 s"), "{error}");
    let told = members[1].watch().failure().or_else(|| members[1].finish(PATIENCE).err());
    assert_eq!(told.map(|error| error.to_string()), Some(error.to_string()));
}

/// Whether `poll` becomes true before everybody loses patience.
fn happens(poll: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !poll() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    poll()
}

#[test]
fn turns_come_to_whole_groups_in_one_order() {
    let (_host, members) = world(3, PATIENCE);
    let boards: Vec<Board> = members.iter().map(Member::board).collect();
    let place = |group| Place { group, sequence: 0 };
    let (all, pair) = (place(GroupId::WORLD), place(GroupId::WORLD.child(0, 0)));
    // Ranks 0 and 1 are in both groups and ask in opposite order.
    boards[0].queue(all, 3);
    boards[0].queue(pair, 2);
    boards[1].queue(pair, 2);
    boards[1].queue(all, 3);
    assert!(happens(|| boards[0].is_turn(pair) && boards[1].is_turn(pair)));
    boards[2].queue(all, 3);
    assert!(happens(|| boards[2].is_turn(all)));
    for board in &boards[..2] {
        assert!(!board.is_turn(all), "one after the other");
        board.pass(all);
        board.pass(pair);
        assert!(happens(|| board.is_turn(all)));
    }
}

#[test]
fn notes_reach_everybody_without_anybody_waiting() {
    let (_host, members) = world(2, PATIENCE);
    let boards: Vec<Board> = members.iter().map(Member::board).collect();
    assert_eq!(boards[0].posted("from 1"), None);
    boards[1].post("from 1", "a note");
    for board in boards {
        assert!(happens(|| board.posted("from 1").as_deref() == Some("a note")));
    }
}

#[test]
fn the_token_of_a_job_is_read_from_the_environment() {
    let words = |name: &str| match name {
        "RANK" => Some("1".to_owned()),
        "WORLD_SIZE" => Some("2".to_owned()),
        "TORCHELASTIC_RUN_ID" => Some("run 3".to_owned()),
        _ => None,
    };
    let no_file = |_: &std::path::Path| Err(io::Error::from(io::ErrorKind::NotFound));
    let env = Environment::new(&words, &no_file);
    let launch = read_launch(None, &env).expect("plain");
    let Launch::Process(spec) = launch else { panic!("one of two: {launch:?}") };
    let Credentials { token, rank, world_size } = Credentials::read(&spec, &env);
    assert_eq!((token.as_str(), rank, world_size), ("run 3", Rank(1), 2));
}
