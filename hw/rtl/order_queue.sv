// Orders of the transport that wait for the transmitter or the receive writer. The transport asks for room before it chooses an event, while it
// may be giving the order of the event before.
module order_queue #(
    parameter int WIDTH = 8,
    parameter int DEPTH_LOG2 = 3
) (
    input logic clk,
    input logic rst,
    input logic push,
    input logic [WIDTH-1:0] push_data,
    output logic room_for_two,
    input logic pop,
    output logic pop_valid,
    output logic [WIDTH-1:0] pop_data
);
  logic [DEPTH_LOG2:0] level;
  assign room_for_two = level <= (DEPTH_LOG2 + 1)'((1 << DEPTH_LOG2) - 2);

  /* verilator lint_off PINCONNECTEMPTY */
  fifo #(
      .WIDTH(WIDTH),
      .DEPTH_LOG2(DEPTH_LOG2)
  ) orders (
      .clk,
      .rst,
      .push,
      .push_data,
      .push_ready(),
      .pop,
      .pop_valid,
      .pop_data,
      .level
  );
  /* verilator lint_on PINCONNECTEMPTY */
endmodule
