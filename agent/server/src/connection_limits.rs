//! ConnectionLimits for connections: so many on one listener, and none that a single user can take all of.
//!
//! Must never keep root or the agent's own user out, nor, where nobody knows who is who, whoever comes, because somebody
//! else holds connections.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// A user other than root and the agent's own gets this part of the connection_limits at most.
const SHARE: usize = 4;
/// This part of the connection_limits is for root and the agent's own user alone.
const KEPT: usize = 8;

/// Who gets the connection_limits of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Whoever comes; when all are taken, who never said anything makes room, else who has said nothing for the
    /// longest time.
    Yielding,
    /// Users by their id; the one named has what root has.
    Users(u32),
}

/// The connection_limits of one listener; clones share them.
#[derive(Debug, Clone)]
pub struct ConnectionLimits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    rule: Rule,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    by: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    user: Option<u32>,
    /// When it last said something, by [`Taken::next`]; `None`: never yet.
    said: Option<u64>,
    leave: CancellationToken,
}

/// One taken place, given back when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    connection_limits: ConnectionLimits,
    number: u64,
    leave: CancellationToken,
}

impl ConnectionLimits {
    /// So many free connection_limits.
    pub fn new(most: u16, rule: Rule) -> Self {
        Self(Arc::new(Shared { most: usize::from(most), rule, taken: Mutex::default() }))
    }

    /// A place for this user (`None`: nobody knows who it is), unless none is left for him.
    pub fn take(&self, user: Option<u32>) -> Option<ConnectionSlot> {
        let Shared { most, rule, .. } = *self.0;
        let mut taken = self.taken();
        let room = match rule {
            Rule::Yielding => taken.by.len() < most || taken.make_room(),
            Rule::Users(own) => {
                let first = |user: Option<u32>| user == Some(0) || user == Some(own);
                let of = |user| taken.by.values().filter(|holder| holder.user == user).count();
                let others = taken.by.values().filter(|holder| !first(holder.user)).count();
                // A single place is for everybody.
                let kept = if most > 1 { (most / KEPT).max(1) } else { 0 };
                taken.by.len() < most
                    && (first(user) || (of(user) < (most / SHARE).max(1) && others + kept < most))
            }
        };
        room.then(|| {
            let (number, leave) = (taken.next, CancellationToken::new());
            taken.next += 1;
            taken.by.insert(number, Holder { user, said: None, leave: leave.clone() });
            ConnectionSlot { connection_limits: self.clone(), number, leave }
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Changed in single steps: whole even if a holder panicked.
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Sends away the quietest: of those who never said anything, the one who came first.
    fn make_room(&mut self) -> bool {
        let quiet = self.by.iter().min_by_key(|(_, holder)| holder.said).map(|(number, _)| *number);
        let gone = quiet.and_then(|number| self.by.remove(&number));
        gone.inspect(|holder| holder.leave.cancel()).is_some()
    }
}

impl ConnectionSlot {
    /// Its holder has said something.
    pub fn said(&self) {
        let mut taken = self.connection_limits.taken();
        let now = taken.next;
        taken.next += 1;
        if let Some(holder) = taken.by.get_mut(&self.number) {
            holder.said = Some(now);
        }
    }

    /// Cancelled when its holder has to go.
    pub fn leave(&self) -> &CancellationToken {
        &self.leave
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connection_limits.taken().by.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(connection_limits: &ConnectionLimits, user: Option<u32>) -> Vec<ConnectionSlot> {
        std::iter::from_fn(|| connection_limits.take(user)).collect()
    }

    #[test]
    fn no_user_and_no_crowd_keeps_root_out() {
        let connection_limits = ConnectionLimits::new(64, Rule::Users(990));
        let first = take_all(&connection_limits, Some(1000));
        assert_eq!(first.len(), 16);
        let crowd: Vec<_> = (1001..1100).flat_map(|uid| take_all(&connection_limits, Some(uid))).collect();
        assert_eq!(first.len() + crowd.len(), 56);
        assert!(connection_limits.take(None).is_none());
        let own = connection_limits.take(Some(990)).unwrap();
        assert_eq!(take_all(&connection_limits, Some(0)).len(), 7);
        drop((own, first));
        assert!(connection_limits.take(Some(1000)).is_some());
    }

    #[test]
    fn few_places_are_still_shared() {
        assert!(ConnectionLimits::new(1, Rule::Users(0)).take(Some(1000)).is_some());
        for most in 2..8 {
            let connection_limits = ConnectionLimits::new(most, Rule::Users(0));
            let users = take_all(&connection_limits, Some(1000));
            assert_eq!(users.len(), 1, "{most}");
            assert_eq!(take_all(&connection_limits, Some(0)).len(), usize::from(most) - 1);
        }
    }

    #[test]
    fn the_quietest_makes_room() {
        let connection_limits = ConnectionLimits::new(2, Rule::Yielding);
        let (asking, mute) = (connection_limits.take(None).unwrap(), connection_limits.take(None).unwrap());
        asking.said();
        let third = connection_limits.take(None).unwrap();
        assert!(mute.leave().is_cancelled() && !asking.leave().is_cancelled());
        drop(mute);
        assert_eq!(connection_limits.taken().by.len(), 2, "its place was given away already");
        third.said();
        asking.said();
        let fourth = connection_limits.take(None).unwrap();
        assert!(third.leave().is_cancelled() && !asking.leave().is_cancelled());
        assert_eq!(connection_limits.taken().by.len(), 2);
        // However many come and say nothing, who talks stays.
        let crowd = [(); 5].map(|()| connection_limits.take(None).unwrap());
        assert!(fourth.leave().is_cancelled() && !asking.leave().is_cancelled());
        drop((fourth, asking, crowd));
        assert!(connection_limits.taken().by.is_empty());
    }
}
