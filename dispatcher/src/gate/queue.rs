//! Who waits at a destination: first attempts and retries in a line each, served in turn, so that neither starves.

use schemas::Topic;
use std::collections::VecDeque;

/// Which line a record waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// From the main topic.
    First,
    /// From a delay tier.
    Retry,
}

/// A place in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    class: Class,
    number: u64,
}

/// Both lines. `W` is what wakes somebody.
#[derive(Debug)]
pub(super) struct Queue<W> {
    first: VecDeque<(u64, W)>,
    retry: VecDeque<(u64, W)>,
    /// Whose turn it is when both have somebody.
    turn: Class,
    next: u64,
}

// === impl Class ===

impl Class {
    /// The line of records of this topic.
    pub fn of(topic: Topic) -> Self {
        match topic {
            Topic::Delay(_) => Self::Retry,
            Topic::Webhooks | Topic::DeadLetters => Self::First,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::First => Self::Retry,
            Self::Retry => Self::First,
        }
    }
}

// === impl Queue ===

impl<W> Queue<W> {
    pub(super) fn new() -> Self {
        Self {
            first: VecDeque::new(),
            retry: VecDeque::new(),
            turn: Class::First,
            next: 0,
        }
    }

    /// Takes the last place in a line.
    pub(super) fn push(&mut self, class: Class, waker: W) -> Ticket {
        let number = self.next;
        self.next += 1;
        self.line_mut(class).push_back((number, waker));
        Ticket { class, number }
    }

    /// Who is served next.
    pub(super) fn front(&self) -> Option<(Ticket, &W)> {
        let of = |class| {
            let (number, waker) = self.line(class).front()?;
            let number = *number;
            Some((Ticket { class, number }, waker))
        };
        of(self.turn).or_else(|| of(self.turn.other()))
    }

    /// Serves the one in front; the other line is next.
    pub(super) fn serve(&mut self, ticket: Ticket) {
        self.remove(ticket);
        self.turn = ticket.class.other();
    }

    /// Gives a place up, wherever it is.
    pub(super) fn remove(&mut self, ticket: Ticket) {
        let line = self.line_mut(ticket.class);
        // Numbers only grow along a line.
        if let Ok(at) = line.binary_search_by_key(&ticket.number, |(number, _)| *number) {
            drop(line.remove(at));
        }
    }

    /// How many wait in a line, and in the other one.
    pub(super) fn lengths(&self, class: Class) -> (usize, usize) {
        (self.line(class).len(), self.line(class.other()).len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.retry.is_empty()
    }

    /// Everybody's wakers.
    pub(super) fn wakers(&self) -> impl Iterator<Item = &W> {
        self.first.iter().chain(&self.retry).map(|(_, waker)| waker)
    }

    fn line(&self, class: Class) -> &VecDeque<(u64, W)> {
        match class {
            Class::First => &self.first,
            Class::Retry => &self.retry,
        }
    }

    fn line_mut(&mut self, class: Class) -> &mut VecDeque<(u64, W)> {
        match class {
            Class::First => &mut self.first,
            Class::Retry => &mut self.retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_served_in_turn_and_each_in_order() {
        let mut queue = Queue::new();
        for name in ["f1", "f2", "f3", "f4"] {
            queue.push(Class::First, name);
        }
        queue.push(Class::Retry, "r1");
        queue.push(Class::Retry, "r2");
        let mut served = Vec::new();
        while let Some((ticket, name)) = queue.front() {
            served.push(*name);
            queue.serve(ticket);
        }
        assert_eq!(served, ["f1", "r1", "f2", "r2", "f3", "f4"]);
    }

    proptest! {
        /// While both lines have somebody, they are never served more than one apart; nobody is lost or served twice.
        #[test]
        fn neither_line_starves(steps in proptest::collection::vec(0_u8..6, 0..300)) {
            let mut queue = Queue::new();
            let mut waiting: Vec<Ticket> = Vec::new();
            let (mut ahead, mut both) = (0_i32, false);
            for step in steps {
                match step {
                    0 | 1 => waiting.push(queue.push(Class::First, ())),
                    2 => waiting.push(queue.push(Class::Retry, ())),
                    3 => {
                        if !waiting.is_empty() {
                            let ticket = waiting.remove(waiting.len() / 2);
                            queue.remove(ticket);
                        }
                    }
                    _ => {
                        if let Some((ticket, ())) = queue.front() {
                            queue.serve(ticket);
                            let at = waiting.iter().position(|it| *it == ticket);
                            prop_assert!(at.is_some());
                            waiting.retain(|it| *it != ticket);
                            ahead += if ticket.class == Class::First { 1 } else { -1 };
                        }
                    }
                }
                let (first, retry) = queue.lengths(Class::First);
                prop_assert_eq!(first + retry, waiting.len());
                if both && first > 0 && retry > 0 {
                    prop_assert!(ahead.abs() <= 1, "{ahead}");
                }
                both = first > 0 && retry > 0;
                if !both {
                    ahead = 0;
                }
            }
        }
    }
}
