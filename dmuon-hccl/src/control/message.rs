//! What goes over a control connection, in both directions.

use super::{
    error::Refusal,
    log::{Place, Progress},
};
use dmuon_core::{Call, CallSite, Error, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Changes when the messages do, so that two versions of dmuon do not misunderstand each other.
pub(super) const VERSION: u32 = 3;

/// The first thing a rank says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) token: String,
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

/// What a rank tells the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToHost {
    /// Still here, and this far.
    Beat(Progress),
    /// Starts a call; sent only where calls are verified.
    Call(Started),
    /// Has waited too long.
    Late(Wait),
    /// What it was asked for.
    Answer(Answer),
    /// Failed.
    Failed(Error),
    /// Starts nothing more.
    Finished(Progress),
    /// Has a small value for everybody.
    Post(String, String),
    /// Waits to enter the library at a place that a group of so many ranks comes to.
    Queue(Place, usize),
    /// Closes the connection on purpose.
    Bye,
}

/// A call that a rank has started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) place: Place,
    pub(super) site: CallSite,
    pub(super) call: Call,
    /// How many ranks the group has.
    pub(super) group_size: usize,
}

/// A wait for a call to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wait {
    pub(super) place: Place,
    pub(super) site: CallSite,
    /// The group.
    pub(super) members: Vec<Rank>,
    /// How long it has taken.
    pub(super) waited: Duration,
}

/// What a rank knows when it is asked about a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The place.
    pub(super) place: Place,
    /// Whether it has started a call there, and which, if it remembers.
    pub(super) started: Option<Option<Call>>,
    /// What it waits for itself at this moment.
    pub(super) waits: Option<Wait>,
}

/// What the host tells a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToRank {
    /// Everybody is here.
    Welcome,
    /// Go away.
    Refused(Refusal),
    /// The world has failed.
    Verdict(Error),
    /// A rank starts nothing more.
    Gone(Rank, Progress),
    /// Have you started the call at this place?
    Ask(Place),
    /// A rank has a small value for everybody.
    Post(String, String),
    /// The whole group is at this place: enter the library.
    Turn(Place),
}
