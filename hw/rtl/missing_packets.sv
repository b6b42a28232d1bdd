// Which packets of a message are missing, by those that are here: the first run of them. Pure decision.
module missing_packets (
    input logic [6:0] here,
    // Packets of the message.
    input logic [2:0] packets,
    // The first that is missing, and what follows the last of its run.
    output logic [2:0] first,
    output logic [2:0] run_end,
    // Bit i: the packet i + 1 after the first that is missing is here.
    output logic [5:0] beyond,
    // None is missing.
    output logic complete
);
  always_comb begin
    first = 3'd7;
    for (int i = 6; i >= 0; i--) if (!here[i]) first = 3'(i);
    run_end = packets;
    for (int i = 6; i >= 0; i--) if (here[i] && 3'(i) > first && 3'(i) < packets) run_end = 3'(i);
  end
  assign beyond = 6'(here >> first >> 1);
  assign complete = first >= packets;
endmodule
