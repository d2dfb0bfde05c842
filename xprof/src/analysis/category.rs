//! Where an operation's time goes, by its HLO category, and which collective it is, by its opcode.

/// What a step's time is split into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Everything that computes or copies on the device.
    Compute = 0,
    /// Collectives, waiting for the others included.
    Collective = 1,
    /// Waiting for input.
    Infeed = 2,
    /// Handing out results.
    Outfeed = 3,
    /// Transfers to and from the host.
    HostTransfer = 4,
}

/// How many classes there are.
pub(super) const CLASSES: usize = 5;

/// Whether XProf's duty cycle leaves the category out.
pub(super) fn is_off_duty(category: &str) -> bool {
    matches!(
        category,
        "infeed"
            | "outfeed"
            | "host send"
            | "host send-done"
            | "host recv"
            | "host recv-done"
            | "async-done"
            | "megacore fusion"
    )
}

/// The class of an operation.
pub(super) fn class(category: &str, collective: Option<Collective>) -> Class {
    match category {
        "infeed" | "sparsecorev0 infeed" => Class::Infeed,
        "outfeed" => Class::Outfeed,
        "host send" | "host send-done" | "host recv" | "host recv-done" => Class::HostTransfer,
        _ if collective.is_some() => Class::Collective,
        _ => Class::Compute,
    }
}

/// The collectives with their own category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collective {
    /// `all-reduce`.
    AllReduce,
    /// `all-gather`.
    AllGather,
    /// `reduce-scatter`.
    ReduceScatter,
    /// `all-to-all`, ragged or not.
    AllToAll,
    /// `collective-permute`.
    CollectivePermute,
    /// `collective-broadcast`.
    CollectiveBroadcast,
    /// `send` and `recv` between devices.
    SendRecv,
}

const COLLECTIVES: [(&str, Collective); 9] = [
    ("all-reduce", Collective::AllReduce),
    ("all-gather", Collective::AllGather),
    ("reduce-scatter", Collective::ReduceScatter),
    ("all-to-all", Collective::AllToAll),
    ("ragged-all-to-all", Collective::AllToAll),
    ("collective-permute", Collective::CollectivePermute),
    ("collective-broadcast", Collective::CollectiveBroadcast),
    ("send", Collective::SendRecv),
    ("recv", Collective::SendRecv),
];

/// How many kinds of [`Collective`] there are.
pub(super) const COLLECTIVE_KINDS: usize = 7;

impl Collective {
    /// Its opcode.
    pub fn opcode(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
            Self::CollectivePermute => "collective-permute",
            Self::CollectiveBroadcast => "collective-broadcast",
            Self::SendRecv => "send/recv",
        }
    }

    /// All kinds, in the order of their discriminants.
    pub(super) const ALL: [Self; COLLECTIVE_KINDS] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::CollectivePermute,
        Self::CollectiveBroadcast,
        Self::SendRecv,
    ];

    /// The collective that an operation is, from its category, its short name and its HLO text.
    ///
    /// The opcode decides where the text has one; an async pair (`async-start`) wraps a collective that only
    /// its name tells; a fusion around a collective has it in its category.
    pub(super) fn of(category: &str, short: &str, text: &str) -> Option<Self> {
        if category.starts_with("host ") {
            return None;
        }
        let opcode = opcode(text).unwrap_or_default();
        let wrapped = matches!(opcode, "" | "async-start" | "async-done" | "async-update" | "fusion");
        Self::named(opcode)
            .or_else(|| Self::named(category.strip_suffix(" fusion").unwrap_or(category)))
            .or_else(|| wrapped.then(|| Self::named(stem(short)))?)
    }

    fn named(opcode: &str) -> Option<Self> {
        let base = opcode.strip_suffix("-start").or_else(|| opcode.strip_suffix("-done")).unwrap_or(opcode);
        COLLECTIVES.iter().find(|(name, _)| *name == base).map(|&(_, kind)| kind)
    }
}

/// An instruction's name without its number: `fusion.3` is a `fusion`.
pub(super) fn stem(name: &str) -> &str {
    let name = name.strip_prefix('%').unwrap_or(name);
    match name.rsplit_once('.') {
        Some((stem, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => stem,
        _ => name,
    }
}

/// The opcode in an instruction's text: `%x = f32[8]{0} all-reduce(%y), …`.
fn opcode(text: &str) -> Option<&str> {
    let (_, after) = text.split_once(" = ")?;
    let after = if after.starts_with('(') { after_tuple(after)? } else { after.split_once(' ')?.1 };
    let after = after.trim_start();
    let end = after.find('(')?;
    let opcode = &after[..end];
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (!opcode.is_empty() && opcode.bytes().all(plain)).then_some(opcode)
}

fn after_tuple(text: &str) -> Option<&str> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return text.get(at + 1..);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_by_opcode() {
        let of = Collective::of;
        let text = "%psum.3 = (f32[8]{0:T(8,128)}, u32[]) all-reduce-start(f32[8] %x)";
        assert_eq!(of("non-fusion elementwise", "psum.3", text), Some(Collective::AllReduce));
        assert_eq!(of("async-done", "all-gather-done.2", ""), Some(Collective::AllGather));
        assert_eq!(of("all-reduce fusion", "fusion.9", ""), Some(Collective::AllReduce));
        assert_eq!(of("loop fusion", "fusion.9", "%fusion.9 = f32[8]{0} fusion(%x)"), None);
        // A name that only looks like one: the opcode says that it is a copy.
        assert_eq!(of("copy", "all-gather.1", "%all-gather.1 = f32[8]{0} copy(%x)"), None);
        assert_eq!(of("host send-done", "send-done.1", ""), None);
        assert_eq!(of("send-done", "send-done.1", ""), Some(Collective::SendRecv));
    }

    #[test]
    fn kinds_are_in_order() {
        for (at, kind) in Collective::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }

    #[test]
    fn names_lose_their_number() {
        assert_eq!(stem("%fusion.3"), "fusion");
        assert_eq!(stem("broadcast_add_fusion"), "broadcast_add_fusion");
        assert_eq!(stem("a.b"), "a.b");
    }
}
