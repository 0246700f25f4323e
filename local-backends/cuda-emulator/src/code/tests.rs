//! The parser, and where branches join.
use super::flow::NEVER;
use super::op::Op;
use super::{Layout, lower};
use crate::ptx::{Operand, Statement, parse};

const HEAD: &str = ".version 8.2\n.target sm_80\n.address_size 64\n";

fn kernel(body: &str) -> super::Kernel {
    let text = format!("{HEAD}.visible .entry k()\n{{\n.reg .pred %p<3>;\n.reg .b32 %r<9>;\n{body}\n}}\n");
    let module = parse(&text).unwrap();
    lower(&module, &module.functions[0], &Layout::new()).unwrap()
}

#[test]
fn variables_with_sizes_alignments_and_values() {
    let text = format!(
        "{HEAD}.file 1 \"a.cu\"\n.const .align 8 .b8 c[8] = {{1, 2, 255}};\n.visible .global .u32 g = 7;\n.global .align 16 .f32 f[2] = {{0f3F800000, 0f40000000}};\n\
         .extern .shared .align 16 .b8 dyn[];\n.section .debug_str {{ .b8 1,2 }}"
    );
    let module = parse(&text).unwrap();
    let all: Vec<_> =
        module.globals.iter().map(|v| (v.name.as_str(), v.size, v.align, v.init.clone(), v.read_only)).collect();
    assert_eq!(all[0], ("c", 8, 8, vec![1, 2, 255], true));
    assert_eq!(all[1], ("g", 4, 4, vec![7, 0, 0, 0], false));
    assert_eq!(all[2], ("f", 8, 16, vec![0, 0, 128, 63, 0, 0, 0, 64], false));
    assert!(module.shared[0].external && module.shared[0].size == 0);
    assert_eq!(module.files[&1], "a.cu");
}

#[test]
fn operands_and_places() {
    let text = format!(
        "{HEAD}.entry k(.param .u64 a, .param .align 8 .b8 s[12]) .maxntid 128, 2, 1\n{{\n.reg .b32 %r<3>;\n.reg .pred p;\n.loc 1 9 0\n\
         @!p ld.global.v2.u32 {{%r1, _}}, [%r2+-8]; /* two\nlines */ mov.u32 %r0, -3;\n}}"
    );
    let module = parse(&text).unwrap();
    let function = &module.functions[0];
    assert_eq!(function.max_threads, Some(256));
    assert_eq!(function.params.iter().map(|p| p.size).collect::<Vec<_>>(), [8, 12]);
    let [Statement::Instruction(load), Statement::Instruction(mov)] = &function.body[..] else {
        panic!("{:?}", function.body)
    };
    assert_eq!(load.guard, Some((3, true)));
    assert_eq!(load.args[0], Operand::Vector(vec![Operand::Reg(1), Operand::Sink]));
    assert_eq!(load.args[1], Operand::Memory(Box::new(Operand::Reg(2)), -8));
    assert_eq!((load.place.ptx, load.place.source), (9, 9));
    assert_eq!((mov.place.ptx, &mov.args[1]), (10, &Operand::Int(-3)));
}

#[test]
fn texts_that_end_or_go_wrong_are_errors_with_a_line() {
    for (text, line) in [
        (".version", 1),
        ("\n.entry k() { mov.u32 ", 2),
        ("\n\n.entry k() { .reg .b128 %r; }", 3),
        (".entry k() { .reg .b32 %r<99999999>; }", 1),
        (".global .b8 x[99999999999];", 1),
        ("\"", 1),
        ("/*", 1),
        (".global .u32 a = { 1, 2 };", 1),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
    }
}

fn join_of(kernel: &super::Kernel, index: usize) -> u32 {
    match kernel.code[index].op {
        Op::Branch { join, .. } | Op::Switch { join, .. } => join,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn branches_join_where_all_ways_meet() {
    // if: at its end. 0 bra, 1 mov, 2 end
    let one = kernel("@%p0 bra E;\nmov.u32 %r0, 1;\nE:\nmov.u32 %r1, 2;\nret;");
    assert_eq!(join_of(&one, 0), 2);
    // if and else. 0 bra, 1 mov, 2 bra E, 3 mov, 4 end
    let two = kernel("@%p0 bra B;\nmov.u32 %r0, 1;\nbra E;\nB:\nmov.u32 %r0, 2;\nE:\nmov.u32 %r1, 2;\nret;");
    assert_eq!(join_of(&two, 0), 4);
    // A loop: behind it. 0 add, 1 bra back, 2 after
    let three = kernel("L:\nadd.u32 %r0, %r0, 1;\n@%p0 bra L;\nmov.u32 %r1, 2;\nret;");
    assert_eq!(join_of(&three, 1), 2);
    // One side ends: never.
    let four = kernel("@%p0 bra B;\nexit;\nB:\nmov.u32 %r0, 2;\nret;");
    assert_eq!(join_of(&four, 0), NEVER);
    // A loop without an end has no join, and is no fault of the reader.
    let five = kernel("L:\n@%p0 bra L;\nbra L;");
    assert_eq!(join_of(&five, 0), NEVER);
    // A table: where its targets meet.
    let six = kernel(
        "brx.idx %r0, T;\nT: .branchtargets A, B;\nA:\nmov.u32 %r1, 1;\nbra E;\nB:\nmov.u32 %r1, 2;\nE:\nmov.u32 %r2, 3;\nret;",
    );
    assert_eq!(join_of(&six, 0), 4);
}

#[test]
fn recursion_is_refused() {
    let text = format!("{HEAD}.func f() {{ call.uni f, (); ret; }}\n.entry k() {{ call.uni f, (); ret; }}");
    let module = parse(&text).unwrap();
    let error = lower(&module, &module.functions[1], &Layout::new()).unwrap_err();
    assert!(error.what.contains("recursive"), "{error}");
}
