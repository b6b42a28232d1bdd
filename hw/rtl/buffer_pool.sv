// Which message buffers are free. It gives out the lowest free one, and takes back any number at a time.
module buffer_pool #(
    parameter int BUFFERS_LOG2 = 6
) (
    input logic clk,
    input logic rst,
    input logic take,
    output logic take_valid,
    output logic [BUFFERS_LOG2-1:0] take_id,
    // Buffers that come back, one bit each.
    input logic [(1<<BUFFERS_LOG2)-1:0] give,
    // Buffers that are out.
    output logic [BUFFERS_LOG2:0] taken
);
  localparam int BUFFERS = 1 << BUFFERS_LOG2;

  logic [BUFFERS-1:0] free_q;
  logic [BUFFERS-1:0] chosen;

  assign take_valid = |free_q;
  // The lowest bit that is set, alone.
  assign chosen = free_q & (~free_q + 1'b1);

  always_comb begin
    take_id = '0;
    for (int i = 0; i < BUFFERS; i++) begin
      if (chosen[i]) take_id = BUFFERS_LOG2'(i);
    end
    taken = '0;
    for (int i = 0; i < BUFFERS; i++) taken = taken + (BUFFERS_LOG2 + 1)'(!free_q[i]);
  end

  always_ff @(posedge clk) begin
    if (rst) free_q <= '1;
    else free_q <= (free_q & ~(take ? chosen : '0)) | give;
  end
endmodule
