//! Tokens as a tree. What the parser does not know is an error with its line.
use super::lex::{Kind, Token, lex};
use super::{Error, Function, Instruction, Module, Operand, Place, Result, Statement, Ty, Variable};
use std::collections::HashMap;

/// Registers of one declaration, at most: a text may not make the emulator allocate without a limit.
const MAX_REGISTERS: u32 = 1 << 20;
/// Bytes of a variable, at most.
const MAX_VARIABLE: u64 = 1 << 30;

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    module: Module,
    function: Function,
    /// What names mean, a map for every open brace.
    scopes: Vec<HashMap<String, Operand>>,
    place: Place,
}

/// The module that a text describes.
pub(crate) fn parse(text: &str) -> Result<Module> {
    let mut parser = Parser {
        tokens: lex(text)?,
        at: 0,
        module: Module::default(),
        function: Function::default(),
        scopes: Vec::new(),
        place: Place::default(),
    };
    while parser.at < parser.tokens.len() {
        parser.top()?;
    }
    Ok(parser.module)
}

impl Parser {
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |t| t.line)
    }

    pub(super) fn next(&mut self) -> Result<Kind> {
        let token = self.tokens.get(self.at).ok_or_else(|| Error::at(self.line(), "the text ends too early"))?;
        self.at += 1;
        Ok(token.kind.clone())
    }

    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|t| &t.kind)
    }

    pub(super) fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Kind::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Kind::Word(w)) if w == word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, sign: char) -> Result<()> {
        if self.accept(sign) {
            return Ok(());
        }
        Err(Error::at(self.line(), format!("{:?} where {sign} should be", self.peek())))
    }

    fn word(&mut self) -> Result<String> {
        let line = self.line();
        match self.next()? {
            Kind::Word(word) => Ok(word),
            other => Err(Error::at(line, format!("{other:?} where a name should be"))),
        }
    }

    fn integer(&mut self) -> Result<u64> {
        let line = self.line();
        match super::operand::number(&self.word()?) {
            Some(Operand::Int(n)) => Ok(n as u64),
            _ => Err(Error::at(line, "no number where one should be")),
        }
    }

    pub(super) fn lookup(&self, name: &str) -> Option<Operand> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).cloned()
    }

    fn skip_line(&mut self) {
        let line = self.tokens[self.at - 1].line;
        while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    fn skip_braces(&mut self) -> Result<()> {
        self.expect('{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                Kind::Sign('{') => depth += 1,
                Kind::Sign('}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// One declaration of the module.
    fn top(&mut self) -> Result<()> {
        let line = self.line();
        let word = self.word()?;
        match word.as_str() {
            ".version" => {
                let version = self.word()?;
                self.module.version = version.replace('.', "").parse().unwrap_or(0);
            }
            ".target" => {
                let target = self.word()?;
                let digits = target.trim_start_matches("sm_").trim_end_matches('a');
                self.module.target = digits.parse().map_err(|_| Error::at(line, format!("target {target}")))?;
                self.skip_line();
            }
            ".address_size" => {
                if self.integer()? != 64 {
                    return Err(Error::at(line, "only addresses of 64 bits are supported"));
                }
            }
            ".file" => {
                let number = self.integer()? as u32;
                if let Kind::Text(name) = self.next()? {
                    self.module.files.insert(number, name);
                }
                self.skip_line();
            }
            ".section" => {
                self.word()?;
                self.skip_braces()?;
            }
            ".visible" | ".weak" | ".common" => {}
            ".extern" => self.external()?,
            ".global" | ".const" => {
                let mut variable = self.variable()?;
                variable.read_only = word == ".const";
                self.module.globals.push(variable);
            }
            ".shared" => {
                let variable = self.variable()?;
                self.module.shared.push(variable);
            }
            ".func" | ".entry" => self.function(word == ".entry")?,
            _ => return Err(Error::at(line, format!("{word} is not supported"))),
        }
        Ok(())
    }

    fn external(&mut self) -> Result<()> {
        let line = self.line();
        if self.accept_word(".shared") {
            let mut variable = self.variable()?;
            variable.external = true;
            self.module.shared.push(variable);
            return Ok(());
        }
        if self.accept_word(".func") {
            return self.function(false);
        }
        Err(Error::at(line, "an external variable that no other module can bring"))
    }

    /// `.align 4 .b8 name[24] = {1, 2};`, from behind its space.
    fn variable(&mut self) -> Result<Variable> {
        let variable = self.declared()?;
        self.expect(';')?;
        Ok(variable)
    }

    fn declared(&mut self) -> Result<Variable> {
        let (mut align, mut ty, mut lanes) = (None, None, 1);
        loop {
            let line = self.line();
            let word = self.word()?;
            match word.as_str() {
                ".align" => align = Some(self.integer()?),
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                ".ptr" | ".global" | ".shared" | ".const" | ".local" | ".attribute" if ty.is_some() => {}
                _ if word.starts_with('.') => {
                    ty = Ty::named(&word[1..]);
                    if ty.is_none() {
                        return Err(Error::at(line, format!("type {word} is not supported")));
                    }
                }
                _ => {
                    let ty = ty.ok_or_else(|| Error::at(line, "a variable without a type"))?;
                    return self.sized(word, ty, lanes, align);
                }
            }
        }
    }

    fn sized(&mut self, name: String, ty: Ty, lanes: u64, align: Option<u64>) -> Result<Variable> {
        let line = self.line();
        let mut size = u64::from(ty.bytes()) * lanes;
        while self.accept('[') {
            if self.accept(']') {
                size = 0;
                continue;
            }
            size = size
                .checked_mul(self.integer()?)
                .filter(|s| *s <= MAX_VARIABLE)
                .ok_or_else(|| Error::at(line, "a variable is too large"))?;
            self.expect(']')?;
        }
        let natural = u64::from(ty.bytes()) * lanes;
        let align = align.unwrap_or(natural).max(1);
        if !align.is_power_of_two() || align > 1024 {
            return Err(Error::at(line, "an alignment that is no power of two up to 1024"));
        }
        let mut init = Vec::new();
        if self.accept('=') {
            self.initial(ty, &mut init)?;
        }
        if init.len() as u64 > size {
            return Err(Error::at(line, "more initial values than the variable holds"));
        }
        Ok(Variable { name, size: size as u32, align: align as u32, external: false, read_only: false, init })
    }

    fn formals(&mut self) -> Result<Vec<Variable>> {
        let mut found = Vec::new();
        while !self.accept(')') {
            let line = self.line();
            match self.word()?.as_str() {
                ".param" => found.push(self.declared()?),
                other => return Err(Error::at(line, format!("a parameter in {other}"))),
            }
            self.accept(',');
        }
        Ok(found)
    }

    fn function(&mut self, entry: bool) -> Result<()> {
        self.function = Function { entry, ..Function::default() };
        if self.accept('(') {
            self.function.results = self.formals()?;
        }
        self.function.name = self.word()?;
        if self.accept('(') {
            self.function.params = self.formals()?;
        }
        loop {
            let line = self.line();
            match self.next()? {
                Kind::Sign(';') => break,
                Kind::Sign('{') => {
                    self.function.defined = true;
                    self.place = Place::default();
                    self.body()?;
                    break;
                }
                Kind::Word(word) if word == ".maxntid" || word == ".reqntid" => {
                    let mut threads = self.integer()?;
                    while self.accept(',') {
                        threads = threads.saturating_mul(self.integer()?);
                    }
                    self.function.max_threads = Some(threads.min(1024) as u32);
                }
                Kind::Word(word) if word == ".minnctapersm" || word == ".maxnreg" => _ = self.integer()?,
                Kind::Word(word) if word == ".noreturn" => {}
                other => return Err(Error::at(line, format!("{other:?} before the body of a function"))),
            }
        }
        let function = std::mem::take(&mut self.function);
        self.module.functions.push(function);
        Ok(())
    }

    fn body(&mut self) -> Result<()> {
        self.scopes = vec![HashMap::new()];
        while !self.scopes.is_empty() {
            if self.accept('{') {
                self.scopes.push(HashMap::new());
            } else if self.accept('}') {
                self.scopes.pop();
            } else if !self.accept(';') {
                self.statement()?;
            }
        }
        Ok(())
    }

    fn statement(&mut self) -> Result<()> {
        let line = self.line();
        let guard = if self.accept('@') {
            match self.operand()? {
                Operand::Reg(reg) => Some((reg, false)),
                Operand::Not(reg) => Some((reg, true)),
                _ => return Err(Error::at(line, "a guard that is no predicate")),
            }
        } else {
            None
        };
        let word = self.word()?;
        if guard.is_none() && self.accept(':') {
            return self.label(word);
        }
        if word.starts_with('.') {
            return self.directive(&word, line);
        }
        let mut args = Vec::new();
        while !self.accept(';') {
            args.push(self.operand()?);
            self.accept(',');
        }
        let place = Place { ptx: line, ..self.place };
        self.function.body.push(Statement::Instruction(Instruction { guard, name: word, args, place }));
        Ok(())
    }

    fn label(&mut self, name: String) -> Result<()> {
        if !self.accept_word(".branchtargets") {
            self.function.body.push(Statement::Label(name));
            return Ok(());
        }
        let mut targets = Vec::new();
        while !self.accept(';') {
            targets.push(self.word()?);
            self.accept(',');
        }
        self.function.tables.insert(name, targets);
        Ok(())
    }

    fn directive(&mut self, word: &str, line: u32) -> Result<()> {
        match word {
            ".reg" => self.registers(),
            ".shared" => {
                let variable = self.variable()?;
                self.function.shared.push(variable);
                Ok(())
            }
            ".local" | ".param" => {
                let mut variable = self.variable()?;
                // Scopes may use a name twice, so each gets a name of its own.
                let own = format!("{}#{}", variable.name, self.function.local.len());
                let scope = self.scopes.last_mut().ok_or_else(|| Error::at(line, "a variable outside of a body"))?;
                scope.insert(std::mem::replace(&mut variable.name, own.clone()), Operand::Symbol(own));
                self.function.local.push(variable);
                Ok(())
            }
            ".loc" => {
                self.place.file = self.integer()? as u32;
                self.place.source = self.integer()? as u32;
                self.skip_line();
                Ok(())
            }
            ".pragma" => {
                self.next()?;
                self.expect(';')
            }
            _ => Err(Error::at(line, format!("{word} is not supported"))),
        }
    }

    fn registers(&mut self) -> Result<()> {
        let line = self.line();
        let word = self.word()?;
        let ty =
            Ty::named(word.trim_start_matches('.')).ok_or_else(|| Error::at(line, format!("registers of {word}")))?;
        loop {
            let name = self.word()?;
            if self.accept('<') {
                let count = self.integer()?;
                self.expect('>')?;
                if count > u64::from(MAX_REGISTERS) {
                    return Err(Error::at(line, "too many registers"));
                }
                for i in 0..count {
                    self.register(format!("{name}{i}"), ty);
                }
            } else {
                self.register(name, ty);
            }
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    fn register(&mut self, name: String, ty: Ty) {
        let id = self.function.registers.len() as u32;
        self.function.registers.push(ty);
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, Operand::Reg(id));
        }
    }
}
