//! How the room of one answer is shared between main records and due delay records.

/// Streams that have something to give: indexes `0..main` are main streams, `main..main + delay` delay streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) main: usize,
    pub(crate) delay: usize,
}

/// Shares `room` records between streams: half for main, half for delay, evenly within a half, and what one can not use
/// goes to the others. `turn` grows with every answer and decides who comes first, so that a room of 1 is fair too.
/// `take(stream, limit)` takes up to `limit` records of a stream and says how many it took: fewer when there are no more, or
/// when its partition has no more room.
pub(crate) fn fill<E>(
    room: usize,
    turn: usize,
    streams: Streams,
    mut take: impl FnMut(usize, usize) -> Result<usize, E>,
) -> Result<(), E> {
    let for_main = main_share(room, turn, streams);
    let mains = rotated(0, streams.main, turn / 2);
    let delays = rotated(streams.main, streams.delay, turn / 2);
    let mut left = room;
    // Main and delay streams of a partition share its room too, so neither may always be the first to ask.
    let mut groups = [(for_main, mains), (room - for_main, delays)];
    if !main_first(turn) {
        groups.reverse();
    }
    for (share, group) in &groups {
        let mut group_left = *share;
        for (at, stream) in group.iter().enumerate() {
            let limit = group_left.div_ceil(group.len() - at);
            if limit > 0 {
                let taken = take(*stream, limit)?.min(limit);
                group_left -= taken;
                left -= taken;
            }
        }
    }
    for stream in groups.into_iter().flat_map(|(_, group)| group) {
        if left > 0 {
            left -= take(stream, left)?.min(left);
        }
    }
    Ok(())
}

/// Who asks first at this turn. Without a period (the Thue-Morse sequence), so that nothing that comes at every second
/// answer meets the same side each time.
pub(crate) fn main_first(turn: usize) -> bool {
    turn.count_ones().is_multiple_of(2)
}

fn main_share(room: usize, turn: usize, streams: Streams) -> usize {
    match (streams.main, streams.delay) {
        (_, 0) => room,
        (0, _) => 0,
        _ if turn.is_multiple_of(2) => room.div_ceil(2),
        _ => room / 2,
    }
}

fn rotated(first: usize, count: usize, by: usize) -> Vec<usize> {
    (0..count).map(|at| first + (at + by) % count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each stream gave when it had `stock`.
    fn given(room: usize, turn: usize, main: usize, stock: &[usize]) -> Vec<usize> {
        let mut given = vec![0; stock.len()];
        let streams = Streams {
            main,
            delay: stock.len() - main,
        };
        let filled: Result<(), ()> = fill(room, turn, streams, |stream, limit| {
            let taken = limit.min(stock[stream] - given[stream]);
            given[stream] += taken;
            Ok(taken)
        });
        assert_eq!(filled, Ok(()));
        given
    }

    #[test]
    fn halves_are_shared_evenly() {
        assert_eq!(given(8, 0, 2, &[100, 100, 100, 100]), [2, 2, 2, 2]);
        assert_eq!(given(8, 0, 3, &[100, 100, 100, 100]), [2, 1, 1, 4]);
    }

    #[test]
    fn what_one_can_not_use_goes_to_the_others() {
        assert_eq!(given(8, 0, 2, &[100, 0, 1, 0]), [7, 0, 1, 0]);
        assert_eq!(given(8, 0, 1, &[1, 100]), [1, 7]);
        assert_eq!(given(8, 0, 1, &[3]), [3]);
        assert_eq!(given(8, 0, 0, &[100]), [8]);
        assert_eq!(given(0, 0, 1, &[9, 9]), [0, 0]);
    }

    #[test]
    fn a_partition_with_little_room_serves_both_sides() {
        let streams = Streams { main: 1, delay: 1 };
        let mut sum = [0; 2];
        for turn in 0..64 {
            // Room for one record of the partition to which both streams belong, and much for others.
            let mut left = 1;
            let filled: Result<(), ()> = fill(100, turn, streams, |stream, limit| {
                let taken = limit.min(left);
                left -= taken;
                sum[stream] += taken;
                Ok(taken)
            });
            assert_eq!(filled, Ok(()));
        }
        assert_eq!(sum, [32, 32]);
    }

    #[test]
    fn a_room_of_one_reaches_every_stream() {
        let mut sum = [0; 4];
        for turn in 0..8 {
            for (sum, given) in sum.iter_mut().zip(given(1, turn, 2, &[9, 9, 9, 9])) {
                *sum += given;
            }
        }
        assert_eq!(sum, [2, 2, 2, 2]);
    }
}
