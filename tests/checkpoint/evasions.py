"""Ways to spell a dangerous name, or to hide it, that were used against scanners."""

from __future__ import annotations

import pickle
import struct

from tests.checkpoint.pickle_writing import call, content, kind, python, shell, text


@kind
def python_2_names(canary: str) -> bytes:
    return b"c__builtin__\neval\n(V" + f"open({canary!r}, 'w')".encode() + b"\ntR."


@kind
def protocol_0_with_inst(canary: str) -> bytes:
    return b"(S'touch " + canary.encode() + b"'\nios\nsystem\n."


@kind
def object_opcode(canary: str) -> bytes:
    return b"\x80\x02(cos\nsystem\n" + shell(canary) + b"o."


@kind
def newobj_opcode(canary: str) -> bytes:
    return b"\x80\x04cos\nsystem\n(" + shell(canary) + b"t\x81."


@kind
def newobj_ex_opcode(canary: str) -> bytes:
    return b"\x80\x04cos\nsystem\n(" + shell(canary) + b"t}\x92."


@kind
def names_from_the_memo(canary: str) -> bytes:
    return b"\x80\x04" + text("os") + b"\x940" + text("system") + b"\x940h\x00h\x01\x93(" + shell(canary) + b"tR."


@kind
def names_swapped_by_dup_and_pop(canary: str) -> bytes:
    return b"\x80\x04" + text("os") + text("decoy") + b"0" + text("system") + b"20\x93(" + shell(canary) + b"tR."


@kind
def a_name_built_by_a_call(canary: str) -> bytes:
    module = text("builtins") + text("str") + b"\x93(" + text("os") + b"tR"
    return b"\x80\x04" + module + text("system") + b"\x93(" + shell(canary) + b"tR."


@kind
def a_way_through_another_module(canary: str) -> bytes:
    return call("torch.serialization", "os.system", shell(canary))


@kind
def a_way_through_dunders(canary: str) -> bytes:
    return call("collections", "OrderedDict.__init__.__globals__.get", text("sys"))


@kind
def attribute_of_a_module(canary: str) -> bytes:
    getter = text("builtins") + text("getattr") + b"\x93(cos\n__name__\n" + text("system") + b"tR"
    return b"\x80\x04" + getter + b"(" + shell(canary) + b"tR."


@kind
def payload_before_a_broken_end(canary: str) -> bytes:
    return call("os", "system", shell(canary))[:-1] + b"\xff\xff garbage"


@kind
def payload_before_a_cut_off_end(canary: str) -> bytes:
    return call("os", "system", shell(canary))[:-1]


@kind
def payload_popped_off_the_stack(canary: str) -> bytes:
    return call("os", "system", shell(canary))[:-1] + b"0}."


@kind
def payload_in_a_second_pickle(canary: str) -> bytes:
    return pickle.dumps({"harmless": 1}) + call("os", "system", shell(canary))


@kind
def payload_in_a_dict_key(canary: str) -> bytes:
    return b"\x80\x04}" + call("os", "system", shell(canary))[2:-1] + b"K\x01s."


@kind
def payload_in_the_state(canary: str) -> bytes:
    return b"\x80\x04ccollections\nOrderedDict\n)R" + call("os", "system", shell(canary))[2:-1] + b"b."


@kind
def a_pickle_in_a_pickle(canary: str) -> bytes:
    return call("_pickle", "loads", content(call("os", "system", shell(canary))))


@kind
def a_pickle_in_a_harmless_call(canary: str) -> bytes:
    return call("somebody", "restore", content(call("os", "system", shell(canary))))


@kind
def a_pickle_in_bytes_of_protocol_2(canary: str) -> bytes:
    inner = call("os", "system", shell(canary), protocol=2)
    encoded = b"c_codecs\nencode\n(" + text(inner.decode("latin-1")) + text("latin1") + b"tR"
    return b"\x80\x02cpickle\nloads\n(" + encoded + b"tR."


@kind
def a_lie_about_the_protocol(canary: str) -> bytes:
    return b"\x80\x00" + call("os", "system", shell(canary))[2:]


@kind
def frames_that_lie(canary: str) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", 2**60) + call("os", "system", shell(canary))[2:]


@kind
def another_record_of_the_archive(canary: str) -> bytes:
    """`torch.load` can be told to take another pickle of the same file."""
    return call("torch", "load", text("model.pt"), text("cpu"), text("config.p"))


@kind
def an_extension_code(canary: str) -> bytes:
    """A number stands for the name once `copyreg` knows it."""
    register = b"ccopyreg\nadd_extension\n(" + text("os") + text("system") + b"K\x7ftR0"
    return b"\x80\x04" + register + b"\x82\x7f(" + shell(canary) + b"tR."


@kind
def attributes_of_a_module_overwritten(canary: str) -> bytes:
    """The state of a module is its names: a harmless function is replaced before it is called."""
    replace = b"ctorch\nserialization\n}" + text("load") + b"cos\nsystem\nsb"
    return b"\x80\x04" + replace + b"0ctorch.serialization\nload\n(" + shell(canary) + b"tR."


@kind
def a_name_with_a_call_at_its_end(canary: str) -> bytes:
    return call("builtins", "eval.__call__", python(canary))


@kind
def a_function_mapped_over_its_arguments(canary: str) -> bytes:
    return call("builtins", "map", b"cbuiltins\neval\n", b"(" + python(canary) + b"t")


@kind
def a_function_behind_a_partial(canary: str) -> bytes:
    return b"\x80\x04cfunctools\npartial\n(cos\nsystem\n" + shell(canary) + b"tR)R."


@kind
def code_made_from_its_bytes(canary: str) -> bytes:
    loaded = b"cmarshal\nloads\n(" + content(b"\xe3" + bytes(16)) + b"tR"
    return b"\x80\x04ctypes\nFunctionType\n(" + loaded + b"}tR)R."


@kind
def a_pickle_in_three_pickles(canary: str) -> bytes:
    body = call("os", "system", shell(canary))
    for _ in range(3):
        body = call("somebody", "restore", content(body))
    return body


@kind
def mark_tricks_around_the_name(canary: str) -> bytes:
    """A mark popped by POP, a value by POP_MARK: what is left on the stack is the name."""
    return b"\x80\x04(0(" + text("decoy") + b"1" + text("os") + text("system") + b"\x93(" + shell(canary) + b"tR."
