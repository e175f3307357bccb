"""Interpreted kernels, faster."""

from importlib.util import find_spec


def hasten():
    """Put the interpreted language in place once a launch and kind of module, and not at every call of a function.

    Triton does so whenever a kernel calls a function, such as ``tl.zeros``, and again whatever is in place already.
    """
    if find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    functions, launches = interpreter.InterpretedFunction, interpreter.GridExecutor
    launch, language = launches.__call__, (interpreter.tl, interpreter.tl.core)
    kinds, in_place = {}, set()

    def begin(self, *arguments, **options):
        in_place.clear()
        return launch(self, *arguments, **options)

    def call(self, *arguments, **options):
        if self.fn not in kinds:
            seen = [value for value in self.fn.__globals__.values() if any(value is one for one in language)]
            kinds[self.fn] = frozenset(map(id, seen))
        if kinds[self.fn] not in in_place:
            interpreter._patch_lang(self.fn)
            in_place.add(kinds[self.fn])
        return self.rewrite()(*arguments, **options)

    launches.__call__, functions.__call__ = begin, call
