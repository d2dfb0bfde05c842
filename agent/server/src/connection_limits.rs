//! A bound on the connections of one listener that no single user can use up.
//!
//! On the Unix socket root and the agent's own user always find a slot. On TCP, where the users are unknown, a new
//! connection takes the slot of the least active one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// A user other than root and the agent's own gets at most this part of the slots.
const USER_SHARE: usize = 4;
/// This part of the slots is reserved for root and the agent's own user.
const RESERVED_SHARE: usize = 8;

/// Who gets a slot when few are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitPolicy {
    /// Every connection. It replaces one that never sent anything, else the one that has been silent the longest.
    ReplaceLeastActive,
    /// By user id. The one named here has the share of root.
    ByUser(u32),
}

/// The slots of one listener. Clones share them.
#[derive(Debug, Clone)]
pub struct ConnectionLimits(Arc<SharedSlots>);

#[derive(Debug)]
struct SharedSlots {
    max: usize,
    policy: LimitPolicy,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// Numbers both slots and activity.
    next: u64,
    taken: BTreeMap<u64, TakenSlot>,
}

#[derive(Debug)]
struct TakenSlot {
    uid: Option<u32>,
    /// The number of the last activity. `None`: nothing was received yet.
    active: Option<u64>,
    evicted: CancellationToken,
}

/// The slot of one connection. It is free again when this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    connection_limits: ConnectionLimits,
    number: u64,
    evicted: CancellationToken,
    replaced_another: bool,
}

impl ConnectionLimits {
    /// `max` free slots.
    pub fn new(max: u16, policy: LimitPolicy) -> Self {
        Self(Arc::new(SharedSlots { max: usize::from(max), policy, slots: Mutex::default() }))
    }

    /// A slot for a connection of this user (`None`: unknown), if the policy has one.
    pub fn take(&self, uid: Option<u32>) -> Option<ConnectionSlot> {
        let SharedSlots { max, policy, .. } = *self.0;
        let mut slots = self.slots();
        let room = match policy {
            LimitPolicy::ReplaceLeastActive => slots.taken.len() < max,
            LimitPolicy::ByUser(own) => slots.has_room_for(uid, own, max),
        };
        let replaced_another =
            !room && policy == LimitPolicy::ReplaceLeastActive && slots.evict_least_active();
        (room || replaced_another).then(|| {
            let (number, evicted) = (slots.next, CancellationToken::new());
            slots.next += 1;
            slots.taken.insert(number, TakenSlot { uid, active: None, evicted: evicted.clone() });
            ConnectionSlot { connection_limits: self.clone(), number, evicted, replaced_another }
        })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Every change is one step, so the map is whole even if a thread panicked.
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn has_room_for(&self, uid: Option<u32>, own: u32, max: usize) -> bool {
        let privileged = |uid: Option<u32>| uid == Some(0) || uid == Some(own);
        let of_user = self.taken.values().filter(|slot| slot.uid == uid).count();
        let unprivileged = self.taken.values().filter(|slot| !privileged(slot.uid)).count();
        // A single slot is not reserved.
        let reserved = if max > 1 { (max / RESERVED_SHARE).max(1) } else { 0 };
        self.taken.len() < max
            && (privileged(uid) || (of_user < (max / USER_SHARE).max(1) && unprivileged + reserved < max))
    }

    /// Evicts the least active connection: of those that never sent anything, the oldest.
    fn evict_least_active(&mut self) -> bool {
        let least = self.taken.iter().min_by_key(|(_, slot)| slot.active).map(|(number, _)| *number);
        let gone = least.and_then(|number| self.taken.remove(&number));
        gone.inspect(|slot| slot.evicted.cancel()).is_some()
    }
}

impl ConnectionSlot {
    /// The connection received something.
    pub fn mark_active(&self) {
        let mut slots = self.connection_limits.slots();
        let now = slots.next;
        slots.next += 1;
        if let Some(slot) = slots.taken.get_mut(&self.number) {
            slot.active = Some(now);
        }
    }

    /// Whether another connection was evicted for this one.
    pub fn replaced_another(&self) -> bool {
        self.replaced_another
    }

    /// Cancelled when the connection must close in favour of another.
    pub fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connection_limits.slots().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(connection_limits: &ConnectionLimits, user: Option<u32>) -> Vec<ConnectionSlot> {
        std::iter::from_fn(|| connection_limits.take(user)).collect()
    }

    #[test]
    fn no_number_of_users_keeps_root_out() {
        let connection_limits = ConnectionLimits::new(64, LimitPolicy::ByUser(990));
        let first = take_all(&connection_limits, Some(1000));
        assert_eq!(first.len(), 16);
        let many: Vec<_> = (1001..1100).flat_map(|uid| take_all(&connection_limits, Some(uid))).collect();
        assert_eq!(first.len() + many.len(), 56);
        assert!(connection_limits.take(None).is_none());
        let own = connection_limits.take(Some(990)).unwrap();
        assert_eq!(take_all(&connection_limits, Some(0)).len(), 7);
        drop((own, first));
        assert!(connection_limits.take(Some(1000)).is_some());
    }

    #[test]
    fn few_slots_are_still_shared() {
        assert!(ConnectionLimits::new(1, LimitPolicy::ByUser(0)).take(Some(1000)).is_some());
        for max in 2..8 {
            let connection_limits = ConnectionLimits::new(max, LimitPolicy::ByUser(0));
            let users = take_all(&connection_limits, Some(1000));
            assert_eq!(users.len(), 1, "{max}");
            assert_eq!(take_all(&connection_limits, Some(0)).len(), usize::from(max) - 1);
        }
    }

    #[test]
    fn the_least_active_connection_is_replaced() {
        let connection_limits = ConnectionLimits::new(2, LimitPolicy::ReplaceLeastActive);
        let (active, silent) = (connection_limits.take(None).unwrap(), connection_limits.take(None).unwrap());
        active.mark_active();
        let third = connection_limits.take(None).unwrap();
        assert!(third.replaced_another() && !active.replaced_another() && !silent.replaced_another());
        assert!(silent.evicted().is_cancelled() && !active.evicted().is_cancelled());
        drop(silent);
        assert_eq!(connection_limits.slots().taken.len(), 2, "its slot was given away already");
        third.mark_active();
        active.mark_active();
        let fourth = connection_limits.take(None).unwrap();
        assert!(third.evicted().is_cancelled() && !active.evicted().is_cancelled());
        assert_eq!(connection_limits.slots().taken.len(), 2);
        // However many silent ones come, the active one stays.
        let many = [(); 5].map(|()| connection_limits.take(None).unwrap());
        assert!(fourth.evicted().is_cancelled() && !active.evicted().is_cancelled());
        drop((fourth, active, many));
        assert!(connection_limits.slots().taken.is_empty());
    }
}
