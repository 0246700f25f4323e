//! How long tokens of a prompt take in a part of a model, next to other parts and other tokens.

use outboard_core::{Graph, TensorId, op};
use std::iter::Sum;
use std::ops::AddAssign;

/// What a token takes, in units that are the same for all parts of a model: flops of products of weights, and of attention as many as
/// take as long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// With no tokens before it.
    pub token: f64,
    /// What each token before it adds.
    pub context: f64,
}

impl Work {
    /// That of one node of a graph, for each of its `n_tokens`; attention is to a context of `n_ctx`, and an operation of it takes as long as
    /// so many of a product.
    pub fn of_node(graph: &Graph, node: TensorId, n_tokens: usize, n_ctx: usize, attention: f64) -> Work {
        let flops = graph.flops(node) as f64 / n_tokens.max(1) as f64;
        match graph.tensor(node).op() {
            Some(op::Op::FlashAttn(a)) => {
                let each = flops * attention / n_ctx.max(1) as f64;
                match a.window {
                    // What is before the window adds nothing; most tokens see all of it.
                    window if (1..n_ctx).contains(&window) => Work { token: each * window as f64, context: 0.0 },
                    _ => Work { token: 0.0, context: each },
                }
            }
            Some(op::Op::MulMat(_) | op::Op::MulMatId(_)) => Work { token: flops, context: 0.0 },
            _ => Work::default(),
        }
    }

    /// What `n` tokens behind `past` others take.
    pub fn cost(self, past: usize, n: usize) -> f64 {
        let (past, n) = (past as f64, n as f64);
        n * (self.token + self.context * (past + n / 2.0))
    }

    /// The most tokens behind `past` others that take `cost` at most.
    pub(crate) fn within(self, past: usize, cost: f64) -> usize {
        let first = self.token + self.context * past as f64;
        // The root of context / 2 n^2 + first n = cost, in the form that does without context.
        (2.0 * cost / (first + (first * first + 2.0 * self.context * cost).sqrt())) as usize
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.token += other.token;
        self.context += other.context;
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Work>>(works: I) -> Work {
        let mut sum = Work::default();
        works.for_each(|work| sum += work);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_core::{DType, GraphBuilder};

    const ATTENTION: f64 = 3.5;

    /// That of a product and of attention to a window.
    fn work(window: usize) -> Work {
        let (n, n_ctx, head_dim, heads) = (8, 50, 10, 2);
        let mut g = GraphBuilder::new();
        let w = g.weight("w", DType::F32, &[100, head_dim * heads]).unwrap();
        let x = g.input("x", DType::F32, &[100, n]).unwrap();
        let positions = g.input("positions", DType::I32, &[n]).unwrap();
        let [k, v] = ["k", "v"].map(|name| g.state(name, DType::F16, &[head_dim, n_ctx, heads]).unwrap());
        let product = g.push(op::MulMat, &[w, x]).unwrap();
        let q = g.push(op::Reshape { ne: [head_dim, n, heads, 1] }, &[product]).unwrap();
        let attn = op::FlashAttn { scale: 1.0, window, softcap: 0.0, block: 0 };
        let y = g.push_opt(attn, &[Some(q), Some(k), Some(v), None, Some(positions)]).unwrap();
        g.output(y);
        let graph = g.finish().unwrap();
        graph.nodes().map(|node| Work::of_node(&graph, node, n, n_ctx, ATTENTION)).sum()
    }

    #[test]
    fn products_and_attention_count() {
        let (product, each) = (2.0 * 100.0 * 20.0, 4.0 * 20.0 * ATTENTION);
        assert_eq!(work(0), Work { token: product, context: each });
        assert_eq!(work(30), Work { token: product + 30.0 * each, context: 0.0 });
        assert_eq!((work(50), work(51)), (work(0), work(0)), "as large as the context");
    }

    #[test]
    fn as_many_tokens_as_take_that_long() {
        let work = Work { token: 1.0, context: 1.0 / 1024.0 };
        assert_eq!((work.cost(0, 0), work.cost(1024, 2)), (0.0, 2.0 * (2.0 + 1.0 / 1024.0)));
        for (past, n) in [(0, 10), (100, 64), (9000, 33)] {
            let cost = work.cost(past, n);
            assert_eq!((work.within(past, cost + 1e-6), work.within(past, cost - 1e-6)), (n, n - 1));
        }
        assert_eq!(Work { context: 0.0, ..work }.within(7, 3.0), 3);
        assert_eq!(Work::default().within(7, 0.0), 0, "nothing to do");
    }
}
