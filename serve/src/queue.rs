//! Who is next: places for texts that are generated, or for long work, and clients that wait for one.
//!
//! A place that becomes free goes to the client that has the fewest, among those with as many to the one whose turn is longest ago. So a client
//! with a thousand texts holds up nobody who has one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::oneshot;

/// Who asks, as far as this is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// The name of a key.
    Key(Arc<str>),
    /// An address; of IPv6 the network, and of this host one for all: it may have many addresses of them.
    Address(IpAddr),
    /// Nobody has said.
    Unknown,
}

impl Client {
    /// Of an address.
    pub(crate) fn at(ip: IpAddr) -> Client {
        Client::Address(match ip.to_canonical() {
            this if this.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
            v4 => v4,
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Key(name) => write!(f, "{name}"),
            Client::Address(ip) => write!(f, "{ip}"),
            Client::Unknown => write!(f, "a client without an address"),
        }
    }
}

/// Places, and who waits for one.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    most: Most,
}

/// How much there is of what is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) places: usize,
    /// That one client has at a time.
    pub(crate) places_each: usize,
    /// That wait, of all clients.
    pub(crate) waiting: usize,
    /// The same of each.
    pub(crate) waiting_each: usize,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<usize>,
    /// Places that one client has at a time.
    each: usize,
    /// Places that clients have.
    taken: HashMap<Client, usize>,
    waiting: HashMap<Client, VecDeque<Waiting>>,
    /// Those who wait, by when they last got a place.
    turns: VecDeque<Client>,
    /// How many wait, of all clients.
    count: usize,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    place: oneshot::Sender<usize>,
}

/// There is no room to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// For anybody.
    Server,
    /// For this client.
    Client,
    /// For so many, whoever else waits.
    Never,
}

impl State {
    /// Gives free places away.
    fn give(&mut self) {
        while let Some(&place) = self.free.last() {
            let taken = |i: &usize| self.taken.get(&self.turns[*i]).copied().unwrap_or(0);
            let waiting = (0..self.turns.len()).filter(|i| taken(i) < self.each);
            let Some(at) = waiting.min_by_key(&taken) else { return };
            let Some(client) = self.turns.remove(at) else { return };
            let next = self.waiting.get_mut(&client).and_then(|waiting| {
                let next = waiting.pop_front();
                if !waiting.is_empty() {
                    self.turns.push_back(client.clone());
                }
                next
            });
            if self.waiting.get(&client).is_some_and(VecDeque::is_empty) {
                self.waiting.remove(&client);
            }
            let Some(next) = next else { continue };
            self.count -= 1;
            if next.place.send(place).is_ok() {
                self.free.pop();
                *self.taken.entry(client).or_default() += 1;
            }
        }
    }

    fn take_back(&mut self, client: &Client, place: usize) {
        if let Some(taken) = self.taken.get_mut(client) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(client);
            }
        }
        self.free.push(place);
        self.give();
    }

    fn leave(&mut self, client: &Client, number: u64) {
        let Some(waiting) = self.waiting.get_mut(client) else { return };
        let before = waiting.len();
        waiting.retain(|one| one.number != number);
        self.count -= before - waiting.len();
        if waiting.is_empty() {
            self.waiting.remove(client);
            self.turns.retain(|one| one != client);
        }
    }
}

impl Queue {
    /// With all places free.
    pub(crate) fn new(most: Most) -> Arc<Queue> {
        let state = State { free: (0..most.places).rev().collect(), each: most.places_each, ..State::default() };
        Arc::new(Queue { state: Mutex::new(state), most })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a client wait for `n` places, which it gets one by one: all of them or none, if there is no room to wait.
    pub(crate) fn enter(self: &Arc<Queue>, client: &Client, n: usize) -> Result<Vec<Turn>, Full> {
        let mut state = self.lock();
        self.has_room(&state, client, n)?;
        let turns = (0..n).map(|_| self.add(&mut state, client)).collect();
        state.give();
        Ok(turns)
    }

    /// The same for somebody who was let in before, has given that place back, and needs one more.
    pub(crate) fn enter_again(self: &Arc<Queue>, client: &Client) -> Turn {
        let mut state = self.lock();
        let turn = self.add(&mut state, client);
        state.give();
        turn
    }

    fn add(self: &Arc<Queue>, state: &mut State, client: &Client) -> Turn {
        let (place, receiver) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        if !state.waiting.contains_key(client) {
            state.turns.push_back(client.clone());
        }
        state.waiting.entry(client.clone()).or_default().push_back(Waiting { number, place });
        state.count += 1;
        Turn { queue: self.clone(), client: client.clone(), number, receiver: Some(receiver) }
    }

    /// Fails as [`Queue::enter`] would now.
    pub(crate) fn check(&self, client: &Client, n: usize) -> Result<(), Full> {
        self.has_room(&self.lock(), client, n)
    }

    fn has_room(&self, state: &State, client: &Client, n: usize) -> Result<(), Full> {
        let wait = n.saturating_sub(state.free.len());
        let Most { places, waiting: all, waiting_each: each, .. } = self.most;
        if n.saturating_sub(places) > all.min(each) {
            return Err(Full::Never);
        }
        let mine = state.waiting.get(client).map_or(0, VecDeque::len);
        if wait > 0 && state.count + wait > all {
            return Err(Full::Server);
        }
        if wait > 0 && mine + wait > each {
            return Err(Full::Client);
        }
        Ok(())
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().count
    }

    /// How many places are free.
    pub(crate) fn free(&self) -> usize {
        self.lock().free.len()
    }
}

/// A wait for a place: a future that gives it. Dropping it gives the wait up.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<Queue>,
    client: Client,
    number: u64,
    receiver: Option<oneshot::Receiver<usize>>,
}

impl Future for Turn {
    type Output = Place;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Place> {
        let Some(receiver) = &mut self.receiver else { return Poll::Pending };
        match Pin::new(receiver).poll(cx) {
            Poll::Ready(Ok(number)) => {
                self.receiver = None;
                Poll::Ready(Place { queue: self.queue.clone(), client: self.client.clone(), number })
            }
            // The queue lives, and drops nobody who waits.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        let mut state = self.queue.lock();
        receiver.close();
        match receiver.try_recv() {
            Ok(place) => state.take_back(&self.client, place),
            Err(_) => state.leave(&self.client, self.number),
        }
    }
}

/// A place for a text. Dropping it gives it to the next.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    client: Client,
    /// Its number, from 0 on.
    pub(crate) number: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.lock().take_back(&self.client, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn client(name: &str) -> Client {
        Client::Key(name.into())
    }

    fn queue(places: usize, waiting: usize, waiting_each: usize) -> Arc<Queue> {
        Queue::new(Most { places, places_each: places, waiting, waiting_each })
    }

    fn poll(turn: &mut Turn) -> Option<Place> {
        match Pin::new(turn).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_with_many_texts_holds_up_nobody() {
        let queue = queue(2, 100, 100);
        let (many, one, two) = (client("many"), client("one"), client("two"));
        let mut of_many = queue.enter(&many, 10).unwrap();
        let first = [poll(&mut of_many[0]).unwrap(), poll(&mut of_many[1]).unwrap()];
        assert!(poll(&mut of_many[2]).is_none());
        let mut of_one = queue.enter(&one, 2).unwrap();
        let mut of_two = queue.enter(&two, 1).unwrap();
        assert_eq!((queue.waiting(), queue.free()), (11, 0));
        let [a, b] = first;
        drop(a);
        // Many has a place, the others have none, and one came before two.
        let first_of_one = poll(&mut of_one[0]).unwrap();
        drop(b);
        // Now many has none, and has waited longest since its turn.
        let third_of_many = poll(&mut of_many[2]).unwrap();
        drop(first_of_one);
        let first_of_two = poll(&mut of_two[0]).unwrap();
        drop(third_of_many);
        let second_of_one = poll(&mut of_one[1]).unwrap();
        assert!(poll(&mut of_many[3]).is_none());
        drop((first_of_two, second_of_one));
        assert!(poll(&mut of_many[3]).is_some() && poll(&mut of_many[4]).is_some());
    }

    #[test]
    fn a_place_stays_for_others() {
        let queue = Queue::new(Most { places: 2, places_each: 1, waiting: 9, waiting_each: 9 });
        let (many, one) = (client("many"), client("one"));
        let mut of_many = queue.enter(&many, 3).unwrap();
        let first = poll(&mut of_many[0]).unwrap();
        assert!(poll(&mut of_many[1]).is_none());
        assert_eq!((queue.free(), queue.waiting()), (1, 2));
        let mut of_one = queue.enter(&one, 1).unwrap();
        let of_one = poll(&mut of_one[0]).unwrap();
        drop(of_one);
        assert!(poll(&mut of_many[1]).is_none());
        drop(first);
        assert!(poll(&mut of_many[1]).is_some());
    }

    #[test]
    fn those_who_leave_keep_no_place() {
        let queue = queue(1, 8, 8);
        let me = client("me");
        let mut turns = queue.enter(&me, 4).unwrap();
        // It was given a place and never took it.
        drop(turns.remove(0));
        assert_eq!((queue.free(), queue.waiting()), (0, 2));
        // In the middle of those who wait.
        drop(turns.remove(1));
        assert_eq!(queue.waiting(), 1);
        let place = poll(&mut turns[0]).unwrap();
        drop(turns);
        assert_eq!((queue.free(), queue.waiting()), (0, 0));
        drop(place);
        assert_eq!(queue.free(), 1);
        let state = queue.lock();
        assert!(state.taken.is_empty() && state.waiting.is_empty() && state.turns.is_empty());
    }

    #[test]
    fn who_was_let_in_before_waits_where_there_is_no_room() {
        let queue = queue(1, 1, 1);
        let mut first = queue.enter(&client("a"), 2).unwrap();
        assert!(queue.enter(&client("a"), 1).is_err() && queue.enter(&client("b"), 1).is_err());
        let mut again = queue.enter_again(&client("b"));
        let place = poll(&mut first[0]).unwrap();
        assert!(poll(&mut again).is_none());
        drop(place);
        // Clients take turns.
        let places = [poll(&mut first[1]), poll(&mut again)];
        assert_eq!(places.iter().flatten().count(), 1);
    }

    #[test]
    fn room_to_wait_is_bounded_for_all_and_for_each() {
        let queue = queue(1, 4, 3);
        let (a, b) = (client("a"), client("b"));
        assert_eq!(queue.enter(&a, 5).unwrap_err(), Full::Never);
        let first = queue.enter(&a, 4).unwrap();
        assert_eq!(queue.enter(&a, 1).unwrap_err(), Full::Client);
        let second = queue.enter(&b, 1).unwrap();
        assert_eq!(queue.enter(&b, 1).unwrap_err(), Full::Server);
        drop((first, second));
        assert_eq!(queue.enter(&b, 1).map(|turns| turns.len()), Ok(1));
    }

    #[test]
    fn addresses_that_one_host_has_many_of_are_one() {
        let of = |text: &str| Client::at(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!((of("127.0.0.2"), of("::1")), (of("127.0.0.1"), of("::ffff:127.3.2.1")));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }
}
