"""Erlang programs that make a used broker as new, and keep it sound."""

from __future__ import annotations

from typing import Final

# Everything that tests make; what a server has from the start stays, with its first values. The supervisor of quorum
# queues' dead-lettering ends for good when two of its workers fail within 5 s, as they may when a queue is deleted in
# the midst of its work; without it no such queue can be made or deleted. Hence the mending, and two attempts.
RESET: Final = """
Us = <<"pairmq-reset">>, Vh = <<"/">>,
Mend = fun() -> case whereis(rabbit_fifo_dlx_sup) of
 undefined -> supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup); _ -> ok end end,
Mend(),
rabbit_networking:close_all_connections("reset by a test"),
[catch rabbit_vhost:delete(V, Us) || V <- rabbit_vhost:list_names(), V =/= Vh],
Mend(),
[rabbit_vhost:delete(V, Us) || V <- rabbit_vhost:list_names(), V =/= Vh],
case rabbit_vhost:exists(Vh) of true -> ok; false -> rabbit_vhost:add(Vh, Us) end,
[rabbit_runtime_parameters:clear_any(Vh, proplists:get_value(component, P), proplists:get_value(name, P), Us)
 || P <- rabbit_runtime_parameters:list(Vh)],
[rabbit_policy:delete(Vh, proplists:get_value(name, P), Us)
 || P <- rabbit_policy:list(Vh) ++ rabbit_policy:list_op(Vh)],
[catch rabbit_amqqueue:delete(Q, false, false, Us) || Q <- rabbit_amqqueue:list(Vh)],
Mend(),
[rabbit_amqqueue:delete(Q, false, false, Us) || Q <- rabbit_amqqueue:list(Vh)],
Mend(),
[rabbit_exchange:delete(element(2, X), false, Us) || X <- rabbit_exchange:list(Vh),
 case element(4, element(2, X)) of <<>> -> false; <<"amq.", _/binary>> -> false; _ -> true end],
Guest = <<"guest">>,
[rabbit_auth_backend_internal:delete_user(U, Us) || L <- rabbit_auth_backend_internal:list_users(),
 U <- [proplists:get_value(user, L)], U =/= Guest],
case rabbit_auth_backend_internal:exists(Guest) of
 true -> rabbit_auth_backend_internal:change_password(Guest, Guest, Us);
 false -> rabbit_auth_backend_internal:add_user(Guest, Guest, Us) end,
rabbit_auth_backend_internal:set_tags(Guest, [administrator], Us),
rabbit_auth_backend_internal:set_permissions(Guest, Vh, <<".*">>, <<".*">>, <<".*">>, Us),
length(rabbit_amqqueue:list())
"""

# The same supervisor may also end a moment after the reset, or in a test that takes the broker down with quorum queues
# in it. This process starts it again whenever that happens; it lives as long as the virtual machine.
KEEP_MENDED: Final = """
case whereis(pairmq_mender) of
 undefined -> Us = self(), spawn(fun() -> true = register(pairmq_mender, self()), Us ! watching,
  (fun Watch() -> case whereis(rabbit_fifo_dlx_sup) of
   undefined -> catch supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup), timer:sleep(20), Watch();
   Sup -> Ref = monitor(process, Sup), receive {'DOWN', Ref, _, _, _} -> Watch() end end end)() end),
  receive watching -> ok end;
 _ -> ok end
"""
