// Carries a counter in Gray code into another clock, through two flip-flops. Of such a counter one bit changes at a time, so what the first flip-flop
// catches of a change is the counter before it or after it; the second waits until the first has settled. No other signal may cross
// between two clocks.
module gray_synchronizer #(
    parameter int WIDTH = 4
) (
    input logic clk,
    input logic rst,
    // Registers of the other clock, in Gray code.
    input logic [WIDTH-1:0] gray,
    output logic [WIDTH-1:0] seen
);
  logic [WIDTH-1:0] caught_q;
  logic [WIDTH-1:0] settled_q;
  assign seen = settled_q;
  always_ff @(posedge clk) begin
    if (rst) begin
      caught_q <= '0;
      settled_q <= '0;
    end else begin
      caught_q <= gray;
      settled_q <= caught_q;
    end
  end
endmodule
